"""OpenAI chat.completion.chunk, as the API or one of the servers that follow it writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tailwatch.errors import OptionError
from tailwatch.sse import validation
from tailwatch.sse.choice_stream import ChoiceStream
from tailwatch.sse.shape import Shape
from tailwatch.sse.shapes import openai, sglang, transformers, vllm


class ChatStream(ChoiceStream):
    """One streamed chat completion: content(text) for each token, the other frames around it."""

    __slots__ = ()

    shapes: ClassVar[Mapping[str, Shape]] = {
        "openai": openai.CHAT,
        "vllm": vllm.CHAT,
        "sglang": sglang.CHAT,
        "transformers": transformers.CHAT,
    }

    def role(self, role: str = "assistant", *, index: int | None = None) -> bytes:
        """The frame that begins a choice; it holds no token."""
        return self._frame("role", {"role": validation.text("role", role)}, index)

    def reasoning(self, text: str, *, index: int | None = None, tokens: int = 1) -> bytes:
        """The frame of a piece of reasoning text; text, index and tokens as for content()."""
        return self._piece("reasoning", text, index, tokens)

    def tool_call(
        self,
        call: int,
        id: str | None = None,
        name: str | None = None,
        arguments: str | None = None,
        *,
        index: int | None = None,
    ) -> bytes:
        """The frame of a piece of a tool call.

        call: which of the choice's calls. Its first piece has id and name, each has a part of the arguments' JSON.

        Raises:
            OptionError: the piece holds none of them.
            TypeError: one of them is no str.
        """
        validation.count("call", call)
        if id is None and name is None:
            return self._arguments(call, arguments, index)
        given = {"call_id": id, "name": name, "arguments": arguments}
        texts: dict[str, object] = {
            key: validation.is_str(key, value) for key, value in given.items() if value is not None
        }
        return self._frame("tool_call", {"call": call, "call_type": "function", **texts}, index)

    def _arguments(self, call: int, arguments: str | None, index: int | None) -> bytes:
        """A piece that has nothing else, by a template."""
        if arguments is None:
            raise OptionError.of("arguments", arguments, "expected an id, a name or arguments: a piece of something")
        choice = self._choice(index)
        splice = self._splices.get(("tool_call", choice, call)) or self._splice("tool_call", choice, call)
        return splice(validation.is_str("arguments", arguments))
