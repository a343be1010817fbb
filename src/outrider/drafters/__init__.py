"""Mechanisms that guess the next tokens of a request: from its own text, or with a smaller model.

Invariant: a drafter decides how much of the target's work is reused, never what is emitted.
"""
