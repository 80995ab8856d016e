"""Anthropic Messages events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailwatch import _hot
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.sse import validation
from tailwatch.sse.shape import fill
from tailwatch.sse.shapes import messages as shapes

_LIKE = {"anthropic": shapes.ANTHROPIC, "vllm": shapes.VLLM}
_MOST_TOKENS = 2**32 - 1


class MessageStream(_hot.Encoder):
    """One streamed message: content blocks one after the other, content(text) for each token of the one that is open.

    Args:
        id, model: of the message.
        like: whose frames, byte for byte: anthropic or vllm (0.33; in 0.32 only error.type differs).

    Raises:
        OptionError: for each of them that is not what it must be.
    """

    __slots__ = ("_index", "_kind", "_message", "_shape")

    if TYPE_CHECKING:

        def content(self, text: str, *, tokens: int = 1) -> bytes:
            """The delta of the block that is open: text, thinking, or a tool's input as partial JSON.

            tokens: how many the text is, for tailwatch's counts; what becomes of it: see ChatStream.content().

            Raises:
                TypeError: text is no str.
                TailwatchError: no block was begun.
                PydanticSerializationError: the text holds half of a surrogate pair.
            """

    def __init__(self, id: str, model: str, *, like: str = "anthropic") -> None:
        self._shape = _LIKE[validation.server(like, _LIKE)]
        self._message = {"id": validation.text("id", id), "model": validation.text("model", model)}
        self._index = -1
        self._kind = ""

    def message_start(
        self, *, input: int, output: int = 0, cache_read: int | None = None, cache_created: int | None = None
    ) -> bytes:
        """The first event. All are counts of tokens."""
        return self._event("message_start", **self._message, **_usage(input, output, cache_read, cache_created))

    def block_start(self, kind: str = "text", *, id: str | None = None, name: str | None = None) -> bytes:
        """Begin a content block. kind: text, thinking or tool_use; that has an id and a name.

        Raises TailwatchError while another block is open: clients take one at a time.
        """
        self._closed("block_start")
        block = self._shape.blocks[validation.one_of("kind", kind, self._shape.blocks)]
        named: dict[str, object] = {}
        if kind == "tool_use":
            named = {"id": validation.text("id", id), "name": validation.text("name", name)}
        elif id is not None or name is not None:
            raise OptionError.of("kind", kind, "only tool_use has an id and a name")
        self._index, self._kind = self._index + 1, kind
        values = {"index": self._index, "delta": shapes.DELTAS[kind]}
        self._template = self._shape.frames["content_block_delta"].template(values)[0]
        return self._event("content_block_start", index=self._index, block=fill(block, named))

    def signature(self, text: str) -> bytes:
        """The signature of a thinking block, before it stops. Raises TailwatchError in any other block."""
        if self._open("signature") != "thinking":
            raise TailwatchError(f"signature(): only a thinking block has a signature; this is one of {self._kind}")
        return self._delta("signature", validation.is_str("text", text))

    def block_stop(self) -> bytes:
        """End the block."""
        self._open("block_stop")
        self._kind, self._template = "", None
        return self._event("content_block_stop", index=self._index)

    def message_delta(
        self,
        stop_reason: str,
        *,
        output: int,
        input: int | None = None,
        stop_sequence: str | None = None,
        cache_read: int | None = None,
        cache_created: int | None = None,
    ) -> bytes:
        """Why the message ended (end_turn, max_tokens, stop_sequence, tool_use), and its usage in tokens."""
        usage = _usage(input, output, cache_read, cache_created)
        stop = {"stop_reason": validation.text("stop_reason", stop_reason)}
        if stop_sequence is not None:
            stop["stop_sequence"] = validation.text("stop_sequence", stop_sequence)
        return self._event("message_delta", **stop, **usage)

    def message_stop(self) -> bytes:
        """The last event. Raises TailwatchError while a content block is open."""
        self._closed("message_stop")
        return self._event("message_stop")

    def ping(self) -> bytes:
        """An event without content: it keeps the connection open."""
        return self._event("ping")

    def error(self, message: str, *, type: str = "api_error") -> bytes:
        """The error event. type: overloaded_error, api_error and the like."""
        return self._event(
            "error", error_type=validation.text("type", type), message=validation.is_str("message", message)
        )

    def _content(self, text: str, *, tokens: int = 1) -> bytes:
        validation.count("tokens", tokens, largest=_MOST_TOKENS)
        frame = self._delta(self._open("content"), validation.is_str("text", text))
        return frame if tokens == 1 else _hot.note(frame, tokens, 0, 0, False, False)

    def _open(self, method: str) -> str:
        if not self._kind:
            raise TailwatchError(f"{method}(): no content block is open; block_start() begins one")
        return self._kind

    def _closed(self, method: str) -> None:
        if self._kind:
            raise TailwatchError(f"{method}(): a content block is open; block_stop() ends it")

    def _delta(self, kind: str, text: str) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=shapes.DELTAS[kind], text=text)

    def _event(self, name: str, **values: object) -> bytes:
        return self._shape.frames[name].write(values)


def _usage(input: int | None, output: int, cache_read: int | None, cache_created: int | None) -> dict[str, object]:
    """The counts that are given."""
    counts = {"input": input, "output": output, "cache_read": cache_read, "cache_created": cache_created}
    return {name: validation.count(name, found) for name, found in counts.items() if found is not None}
