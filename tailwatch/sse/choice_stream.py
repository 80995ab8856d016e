"""What chat and completion streams have in common: text of one or several choices, their end, usage, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from tailwatch import _hot
from tailwatch.errors import OptionError
from tailwatch.sse import validation
from tailwatch.sse.shape import OUT, Frame, Shape

Usage = tuple[int, int] | Mapping[str, object]

_COUNTS = ("prompt", "total", "completion")
_COUNTED = frozenset(_COUNTS)
_MOST_TOKENS = _MOST_CHOICES = 2**32 - 1


class ChoiceStream(_hot.Encoder):
    """Frames of one answer. content() is the hot method; each choice and kind of text has a template of its own.

    Args:
        id, model, created: as every frame names them; created in seconds.
        index: the choice that frames are for unless they have another.
        like: whose frames, byte for byte: openai, vllm (0.33; 0.32 has no kv_transfer_params and no weight_versions),
            sglang (0.5.23) or transformers (5.23).
        system_fingerprint, service_tier: where that server sends them.
        include_usage: as in the request: what other frames have of usage depends on it.

    Raises:
        OptionError: for each of them that is not what it must be.
    """

    __slots__ = ("_filled", "_index", "_like", "_only_last", "_shape", "_splices", "_values")

    shapes: ClassVar[Mapping[str, Shape]]

    if TYPE_CHECKING:

        def content(
            self,
            text: str,
            *,
            index: int | None = None,
            tokens: int = 1,
            logprobs: object = None,
            usage: Usage | None = None,
        ) -> bytes:
            """The frame of a piece of generated text.

            Args:
                text: as the model wrote it; in the frame it is escaped.
                index: its choice, where that is not the stream's own.
                tokens: how many tokens the text is, for tailwatch's counts; the bytes are the same. A number other than
                    1 is kept for this very object, and for frames that are sent soon: some thousand at a time, 4 MiB
                    together. Frames that are joined into one message, or copied, are scanned and count one token
                    each; usage at the end raises the count to its own.
                logprobs: what goes there, as JSON (by orjson).
                usage: so far, (prompt tokens, completion tokens), or the object itself: for servers that send it on
                    every chunk.

            Raises:
                TypeError: text is no str.
                What the imitated serialiser raises: the text holds half of a surrogate pair.
            """

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        *,
        index: int = 0,
        like: str = "openai",
        system_fingerprint: str | None = None,
        service_tier: str | None = None,
        include_usage: bool = False,
    ) -> None:
        self._like = validation.server(like, self.shapes)
        self._shape = self.shapes[like]
        self._index = _choice(index)
        self._splices: dict[tuple[object, ...], Callable[[str], bytes]] = {}
        self._filled: dict[tuple[str, int], tuple[_hot.Template, tuple[str, ...]]] = {}
        self._values: dict[str, object] = {
            "id": validation.text("id", id),
            "model": validation.text("model", model),
            "created": validation.count("created", created),
        }
        self._set_constant("system_fingerprint", system_fingerprint)
        self._set_constant("service_tier", service_tier)
        follows = validation.flag("include_usage", include_usage)
        if follows and self._shape.usage_is_null:
            self._values["usage"] = None
        self._only_last = {"system_fingerprint": OUT} if follows and self._shape.fingerprint_is_last else {}
        self._template = self._of("content", {}).template({**self._values, "index": index})[0]

    def finish(
        self,
        reason: str,
        *,
        text: str | None = None,
        stop: str | int | None = None,
        index: int | None = None,
        logprobs: object = None,
        usage: Usage | None = None,
    ) -> bytes:
        """The frame that ends a choice.

        reason: stop, length, tool_calls and the like. text: the last piece, where it comes with the end. stop: the stop
        string or token that was met, for servers that send it. index, logprobs, usage: as for content().
        """
        given = _given(reason=validation.text("reason", reason), text=text, stop=stop, logprobs=logprobs)
        validation.is_str("text", given.get("text", ""))
        return self._frame("finish", given, index, usage, self._only_last)

    def usage(self, *, prompt: int, completion: int, cached: int | None = None, reasoning: int | None = None) -> bytes:
        """The frame with the usage of the whole answer: tokens of the prompt, of them cached; tokens generated, of them
        reasoning."""
        counts, slots = _counts(prompt, completion), self._of("usage", {}).slots
        for name, count in _given(cached=cached, reasoning=reasoning).items():
            if f"{name}_details" not in slots:
                raise self._no_place(name, count, "usage")
            counts[name] = validation.count(name, count)
            if count or name == "cached" or self._shape.zero_is_detail:
                counts[f"{name}_details"] = {f"{name}_tokens": count}
        return self._frame("usage", {}, values=counts)

    def error(
        self, message: str, *, type: str | None = None, code: int | str | None = None, param: str | None = None
    ) -> bytes:
        """The frame for an answer that failed, for when its beginning is sent already."""
        validation.is_str("message", message)
        return self._frame("error", _given(message=message, type=type, code=code, param=param))

    def _content(
        self,
        text: str,
        *,
        index: int | None = None,
        tokens: int = 1,
        logprobs: object = None,
        usage: Usage | None = None,
    ) -> bytes:
        return self._piece("content", text, index, tokens, logprobs, usage)

    def _piece(
        self,
        kind: str,
        text: str,
        index: int | None,
        tokens: int,
        logprobs: object = None,
        usage: Usage | None = None,
    ) -> bytes:
        """A frame of text, by a template where only text and counts change."""
        if index is not None and type(index) is not int:
            _choice(index)  # True and 1.0 are equal to 1, whose frames may be known
        if logprobs is not None or (usage is not None and not isinstance(usage, tuple)):
            frame = self._frame(
                kind, {"text": validation.is_str("text", text), **_given(logprobs=logprobs)}, index, usage
            )
        elif usage is not None:
            frame = self._counted(kind, text, self._choice(index), usage)
        else:
            frame = (self._splices.get((kind, index)) or self._splice(kind, index))(text)
        if tokens == 1 and type(tokens) is int:
            return frame
        validation.count("tokens", tokens, largest=_MOST_TOKENS)
        return _hot.note(frame, tokens, self._choice(index), _generated(usage), False, False)

    def _splice(self, kind: str, index: int | None, call: int | None = None) -> Callable[[str], bytes]:
        """What makes this kind of frame for a choice, from then on."""
        given = {} if call is None else {"call": call}
        values = {**self._values, **given, "index": self._choice(index)}
        template = self._of(kind, given).template(values, ("text",) if call is None else ("arguments",))[0]
        self._splices[(kind, index) if call is None else (kind, index, call)] = template.splice
        return template.splice

    def _counted(self, kind: str, text: str, index: int, usage: tuple[int, int]) -> bytes:
        """The frame with usage, whose counts are left open, too."""
        values = {"text": text, **self._usage(usage)}
        if (kind, index) not in self._filled:
            frame = self._of(kind, {"usage": usage})
            given = {**self._values, "usage": self._shape.usage, "index": index}
            self._filled[kind, index] = frame.template(given, ("text",), _COUNTS)
        template, order = self._filled[kind, index]
        return template.fill(*[values[name] for name in order])  # type: ignore[arg-type]

    def _frame(
        self,
        kind: str,
        given: Mapping[str, object],
        index: int | None = None,
        usage: Usage | None = None,
        values: Mapping[str, object] = {},
    ) -> bytes:
        on_chunk = self._usage(usage)
        frame = self._of(kind, {**given, **on_chunk} if on_chunk else given)
        return frame.write({**self._values, **values, **given, **on_chunk, "index": self._choice(index)})

    def _of(self, kind: str, given: Mapping[str, object]) -> Frame:
        """The frame of that kind, which has a place for all that is given."""
        frame = self._shape.frames.get(kind)
        if frame is None:
            raise OptionError.of("like", self._like, f"that server sends no {kind} frame")
        for name in given.keys() - frame.slots - _COUNTED:
            raise self._no_place(name, given[name], kind)
        return frame

    def _no_place(self, name: str, value: object, kind: str) -> OptionError:
        return OptionError.of(name, value, f"like={self._like!r} has no place for it in its {kind} frame")

    def _set_constant(self, name: str, value: str | None) -> None:
        """A value for every frame of this server that has a place for it."""
        if value is None:
            return
        self._values[name] = validation.text(name, value)
        if not any(name in frame.slots for frame in self._shape.frames.values()):
            raise OptionError.of(name, value, f"like={self._like!r} sends no such field")

    def _choice(self, index: int | None) -> int:
        return self._index if index is None else _choice(index)

    def _usage(self, usage: Usage | None) -> dict[str, object]:
        """What fills the slots of the usage that rides on a chunk."""
        if usage is None:
            return {}
        if isinstance(usage, tuple) and len(usage) == 2:
            return {"usage": self._shape.usage, **_counts(*usage)}
        if not isinstance(usage, Mapping):
            raise OptionError.of("usage", usage, "expected (prompt tokens, completion tokens) or a mapping")
        return {"usage": dict(usage)}


def _choice(index: object) -> int:
    return validation.count("index", index, largest=_MOST_CHOICES)


def _counts(prompt: int, completion: int) -> dict[str, object]:
    total = validation.total(prompt=prompt, completion=completion)
    return {"prompt": prompt, "completion": completion, "total": total}


def _given(**values: object) -> dict[str, object]:
    """Those of them that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _generated(usage: Usage | None) -> int:
    """The completion tokens of a usage, as many as can be counted."""
    found = usage[1] if isinstance(usage, tuple) else (usage or {}).get("completion_tokens", 0)
    return min(max(found, 0), _MOST_TOKENS) if isinstance(found, int) else 0
