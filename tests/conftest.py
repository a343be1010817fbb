"""Hypothesis settings for all tests: the same examples on every machine, no time limit for one example."""

from hypothesis import settings

settings.register_profile("outrider", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("outrider")
