"""Prompts to run a model on: readers for the field's file formats, and how an item becomes tokens.

This package knows files and messages. It does not know who runs the prompts. Invariant: a workload that was read is
complete and its ids are unique; a file that is not understood is refused with the line at which it stopped making
sense.
"""

from outrider.workloads.base import PromptItem, Workload
from outrider.workloads.encode import encode_item, encode_prediction
from outrider.workloads.read import read_prompts
from outrider.workloads.texts import read_texts

__all__ = ["PromptItem", "Workload", "encode_item", "encode_prediction", "read_prompts", "read_texts"]
