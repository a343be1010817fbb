"""Render chat messages with a model's own template, in the dialect that templates are written for.

This module knows the template language. It does not know tokens or models. Invariant: templates come with downloads and
run in a sandbox; they can neither reach files nor change what they are given.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from outrider.errors import InvalidRequestError

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """A chat template, compiled when first used.

    Attributes:
        sources: template text by name; "default", and for some models "tool_use".
        special_tokens: variables such as `bos_token` and `eos_token`.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        self.special_tokens = dict(special_tokens)
        self._compiled: dict[str, Any] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Give the prompt text of a conversation.

        Args:
            messages: each with "role" and "content".
            tools: JSON schemas of functions, for templates that know them.
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: further variables of the template, as in `enable_thinking=False`.

        Raises:
            InvalidRequestError: the template refuses the messages.
        """
        from jinja2.exceptions import TemplateError

        name = "tool_use" if tools and "tool_use" in self.sources else "default"
        values = {
            **self.special_tokens,
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            if name not in self._compiled:
                self._compiled[name] = self._environment.from_string(self.sources[name])
            return str(self._compiled[name].render(values))
        except (TemplateError, TypeError, KeyError, AttributeError) as error:
            raise InvalidRequestError(
                f"The model's chat template refuses these messages ({error}); check their roles and their order."
            ) from error

    @cached_property
    def _environment(self) -> Any:
        """The sandbox with the blocks, filters and functions that templates expect."""
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """Accept `{% generation %}`, which marks the assistant's text for training, and render what it holds."""

            tags = {"generation"}  # noqa: RUF012 - the base class declares a set

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.Scope(body, lineno=line)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON without the escaping that HTML would need."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    """Let a template refuse its input."""
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)
