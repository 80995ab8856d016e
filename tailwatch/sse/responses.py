"""OpenAI Responses events, numbered as they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailwatch import _hot
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.sse import validation
from tailwatch.sse.shape import Frame, Slot, fill
from tailwatch.sse.shapes import responses as shapes

_MOST_TOKENS = 2**32 - 1


class ResponseStream(_hot.Encoder):
    """One streamed response: output items one after the other, content(text) for each token of the one that is open.

    Frames are to be sent in the order they are made: each has the next sequence number.

    Args:
        id, model, created: of the response; created in seconds.
        fields: what else the response object has, by its keys: temperature, tools, instructions, ... Not what the
            stream sets itself: id, model, created_at, status, output, usage, error, incomplete_details.

    Raises:
        OptionError: for each of them that is not what it must be.
    """

    __slots__ = ("_at", "_kind", "_output", "_response", "_values")

    if TYPE_CHECKING:

        def content(self, text: str, *, tokens: int = 1, logprobs: object = None) -> bytes:
            """The delta of the item that is open: output text, reasoning text, or a function call's arguments.

            tokens: how many the text is, for tailwatch's counts; what becomes of it: see ChatStream.content().
            logprobs: of output text, as JSON (by orjson).

            Raises:
                TypeError: text is no str.
                TailwatchError: no item was begun.
                PydanticSerializationError: the text holds half of a surrogate pair.
            """

    def __init__(self, id: str, model: str, created: int, *, fields: Mapping[str, object] | None = None) -> None:
        _check_fields(fields)
        self._response = {**shapes.RESPONSE, **(fields or {})}
        self._values: dict[str, object] = {
            "id": validation.text("id", id),
            "model": validation.text("model", model),
            "created": validation.count("created", created),
        }
        self._output: list[object] = []
        self._kind: shapes.Kind | None = None
        self._at: dict[str, object] = {}

    def created(self) -> bytes:
        """response.created, the first event."""
        return self._whole("created", "in_progress")

    def in_progress(self) -> bytes:
        """response.in_progress, the second."""
        return self._whole("in_progress", "in_progress")

    def item(self, id: str, kind: str = "message", *, call_id: str | None = None, name: str | None = None) -> bytes:
        """Begin an output item: output_item.added and, but for a function call, content_part.added.

        kind: message, reasoning or function_call; a function call has its call_id and name. Raises TailwatchError while
        another item is open: each has an output_index of its own.
        """
        self._closed("item")
        shape = shapes.KINDS[validation.one_of("kind", kind, shapes.KINDS)]
        at: dict[str, object] = {"item_id": validation.text("id", id), "output_index": len(self._output)}
        if kind == "function_call":
            at |= {"call_id": validation.text("call_id", call_id), "name": validation.text("name", name)}
        elif call_id is not None or name is not None:
            raise OptionError.of("kind", kind, "only a function_call has a call_id and a name")
        self._template = shape.delta.template(at, ("text",), ("sequence_number",))[0]
        self._kind, self._at = shape, at
        frames = self._next(shapes.ITEM_ADDED, item=fill(shape.begun, at))
        return frames + (self._next(shapes.PART_ADDED, part=fill(shape.part, {"text": ""})) if shape.part else b"")

    def item_done(self, text: str, *, status: str = "completed") -> bytes:
        """End it: its whole text is done, its part, and the item itself. status: completed or incomplete."""
        kind = self._open("item_done")
        values = {**self._at, "text": validation.is_str("text", text), "item_status": validation.text("status", status)}
        item = fill(kind.done, values)
        if isinstance(item, dict) and item["type"] == "message" and not text:
            item["content"] = []
        frames = self._next(kind.text_done, text=text)
        if kind.part_done:
            frames += self._next(shapes.PART_DONE, part=fill(kind.part_done, values))
        frames += self._next(shapes.ITEM_DONE, item=item)
        self._output.append(item)
        self._kind, self._template = None, None
        return frames

    def completed(self, *, input: int, output: int, cached: int = 0, reasoning: int = 0) -> bytes:
        """response.completed with the items that are done and the usage: tokens in, of them cached, and out, of them
        reasoning. Raises TailwatchError while an item is open: what is not done would be missing."""
        self._closed("completed")
        return self._whole("completed", "completed", usage=_usage(input, output, cached, reasoning))

    def incomplete(
        self, reason: str = "max_output_tokens", *, input: int, output: int, cached: int = 0, reasoning: int = 0
    ) -> bytes:
        """response.incomplete: it ended early, for a reason. Usage, and what it raises, as for completed()."""
        self._closed("incomplete")
        details = {"reason": validation.text("reason", reason)}
        return self._whole(
            "incomplete", "incomplete", usage=_usage(input, output, cached, reasoning), incomplete_details=details
        )

    def failed(self, message: str, *, code: str = "server_error") -> bytes:
        """response.failed: the response ended as an error, also while an item is open."""
        error = {"code": validation.text("code", code), "message": validation.is_str("message", message)}
        return self._whole("failed", "failed", error=error)

    def error(self, message: str, *, code: str | None = None, param: str | None = None) -> bytes:
        """The error event."""
        return self._next(shapes.ERROR, message=validation.is_str("message", message), code=code, param=param)

    def _content(self, text: str, *, tokens: int = 1, logprobs: object = None) -> bytes:
        kind = self._open("content")
        validation.count("tokens", tokens, largest=_MOST_TOKENS)
        given = {} if logprobs is None else {"logprobs": logprobs}
        if given and "logprobs" not in kind.delta.slots:
            raise OptionError.of("logprobs", logprobs, "only output text has logprobs")
        frame = self._next(kind.delta, text=validation.is_str("text", text), **given)
        return frame if tokens == 1 else _hot.note(frame, tokens, 0, 0, False, False)

    def _open(self, method: str) -> shapes.Kind:
        if self._kind is None:
            raise TailwatchError(f"{method}(): no output item is open; item() begins one")
        return self._kind

    def _closed(self, method: str) -> None:
        if self._kind is not None:
            raise TailwatchError(f"{method}(): an output item is open; item_done() ends it")

    def _whole(self, name: str, status: str, **given: object) -> bytes:
        values = {**self._values, "status": status, "output": list(self._output), **given}
        return self._next(shapes.WHOLE[name], response=fill(self._response, values))

    def _next(self, frame: Frame, **given: object) -> bytes:
        """The frame, with the next number; one that cannot be made takes none."""
        made = frame.write({**self._at, **given, "sequence_number": self._sequence})
        self._sequence += 1
        return made


def _check_fields(fields: object) -> None:
    if not isinstance(fields, Mapping | None):
        raise OptionError.of("fields", fields, "expected a mapping")
    for key in fields or ():
        if isinstance(shapes.RESPONSE.get(key), Slot):
            raise OptionError.of(
                "fields",
                key,
                "expected keys of the response's that the stream does not set: this one the stream sets itself",
            )


def _usage(input: int, output: int, cached: int, reasoning: int) -> object:
    counts = {
        "input": input,
        "generated": output,
        "total": validation.total(input=input, output=output),
        "cached": validation.count("cached", cached),
        "reasoning": validation.count("reasoning", reasoning),
    }
    return fill(shapes.USAGE, counts)
