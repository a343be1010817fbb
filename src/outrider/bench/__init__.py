"""Whether speculation pays on someone's own prompts: paired runs, their sums, a report.

This package runs prompts with and without drafts by turns, adds up what was measured and shows it; it decides nothing
about drafting. Invariant: every figure is a sum or a ratio of sums over stored runs, so that a report can be made again
from `run.json` alone.
"""
