"""The interactive page and its endpoints: why speculative decoding works, on the maths and the engine that serve.

Nothing is computed twice: `analysis` gives every number, `core.verify` judges every round, the engine writes every
token, and the page only asks. Invariant: the page needs nothing from any network.
"""
