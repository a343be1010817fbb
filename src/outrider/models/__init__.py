"""Models: what the engine needs of one (`base`), the decoder of the Llama family, its loading, tiny ones for tests.

Nothing here knows requests, drafters or sampling.
"""
