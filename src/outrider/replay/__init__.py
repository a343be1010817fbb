"""Recorded texts x drafters x policies without a model: seconds instead of hours, on the very engine that serves.

A recorded text says what the target emitted; which draft tokens would have been accepted follows from that alone under
the MATCH rule. This package knows records and runs the engine on them; it draws nothing and computes no logits.
Invariant: for deterministic drafters a replay counts exactly what the live run of the same text counts.
"""
