"""Key-value caches: the protocol in `base`, who owns which slot in `slots`, the tensors in `kv` and, in pages, `paged`.

Nothing here knows tokens or requests. Invariant: every length is absolute.
"""
