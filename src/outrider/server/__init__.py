"""An OpenAI-compatible server in which speculation is a first-class feature.

It turns HTTP requests into submissions to an `engine.worker` and events into answers. It decides nothing about
sampling or drafting. Invariant: what it does not support is refused by name; nothing is silently ignored.
"""
