"""Requests, scheduling and the loop that drafts, runs the target once, verifies and commits.

Invariant: the engine decides nothing that a layer below it decides; it only passes values on.
"""
