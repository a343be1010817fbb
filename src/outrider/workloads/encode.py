"""A prompt as the tokens of one model.

This module knows tokenizers; it runs nothing. Invariant: nothing that an item holds is silently left out of its tokens.
"""

import json

from outrider.errors import UnsupportedError
from outrider.models.tokenizer import Tokenizer
from outrider.workloads.base import PromptItem

__all__ = ["encode_item", "encode_prediction"]


def encode_item(tokenizer: Tokenizer, item: PromptItem, *, raw: bool = False) -> list[int]:
    """The prompt's tokens.

    Args:
        tokenizer: the target's tokenizer.
        item: the prompt.
        raw: leave the chat template out.

    Raises:
        UnsupportedError: `raw` is asked of a conversation.
        InvalidRequestError: the model has no chat template, or it refuses the messages.
    """
    if raw:
        if item.raw is None:
            raise UnsupportedError(f"prompt {item.id} is a conversation and has no raw text; leave raw out.")
        return tokenizer.encode(item.raw)
    messages = [dict(message) for message in item.messages]
    if not item.tools:
        return tokenizer.apply_chat(messages)
    template = tokenizer.chat_template
    if template is not None and any("tools" in source for source in template.sources.values()):
        return tokenizer.apply_chat(messages, tools=item.tools)
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in item.tools)
    system = {"role": "system", "content": f"You may call these functions:\n{listed}"}
    return tokenizer.apply_chat([system, *messages])


def encode_prediction(tokenizer: Tokenizer, item: PromptItem) -> list[int] | None:
    """The tokens of the expected answer; None without one."""
    return None if item.prediction is None else tokenizer.encode(item.prediction, add_special=False)
