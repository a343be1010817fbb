"""Decisions how to speculate, made from numbers alone; no tensor, token or text comes in here."""
