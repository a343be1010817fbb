"""Models: what the engine needs of one in `base`, the decoder of the Llama family, its loading, and tiny ones for tests.

Nothing here knows requests, drafters or sampling.
"""
