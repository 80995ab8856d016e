"""Which events of a streamed body carry generated content: the rules of csrc/wire/scan_event.c, on parsed JSON.

An event that is not JSON counts as one token, as there; so does one that is longer than is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

SSE, LINES, MESSAGE, RAW, WHOLE = range(5)
"""How a body is cut into events, as enum tw_framing of body_scan.h numbers it."""

_FRAME_OF_DELTA = frozenset({"role", "type", "name", "signature", "hidden_states"})
_SILENT = frozenset(
    ("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop", "ping", "keepalive")
)
_SILENT_PHASES = frozenset(
    {
        *("created", "in_progress", "queued", "added", "done", "completed", "incomplete", "failed", "cancelled"),
        *("searching", "interpreting", "generating", "updated", "committed"),
    }
)
_ENDS = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
_FIELD = re.compile(rb"(data|event)(?:: ?(.*))?", re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DIGITS = re.compile(r"[0-9]+")
_MOST = 2**32 - 1

Object = tuple[tuple[str, Any], ...]
"""A JSON object: its keys in order, with all that are there twice."""


class Event:
    """What one event holds.

    Attributes:
        counts: tokens by the index of their choice.
        done, error: an end marker, an error.
        usage: completion tokens that the server states; 0: none.
        object: it is a JSON object.
    """

    __slots__ = ("counts", "done", "error", "object", "usage")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.done = self.error = self.object = False
        self.usage = 0

    @property
    def tokens(self) -> int:
        """Of all choices."""
        return sum(self.counts.values())

    def count(self, choice: int, n: int) -> None:
        """Tokens of a choice."""
        self.counts[choice] = self.counts.get(choice, 0) + n


def parsed(data: bytes) -> Any:
    """A JSON value, its objects as `Object`. Raises ValueError."""
    return json.loads(
        data.decode(errors="surrogateescape"), object_pairs_hook=tuple, parse_int=_number, parse_float=_number
    )


def _number(text: str) -> int:
    digits = _DIGITS.match(text)
    return min(int(digits[0][:20]), _MOST) if digits else 0


def look(event: bytes, framing: int) -> Event:
    """The event in these bytes: with the fields of an SSE event, or one document."""
    found = Event()
    data, name = _fields(event) if framing == SSE else (event, b"")
    data = data.strip(b" \t\r\n")
    if data == b"[DONE]":
        found.done = True
    elif data:
        _Walk(found).over(data, name.decode(errors="replace"))
    return found


def _fields(event: bytes) -> tuple[bytes, bytes]:
    data, name = [], b""
    for line in _LINE_END.split(event.removeprefix(b"\xef\xbb\xbf")):
        if (field := _FIELD.fullmatch(line)) is None:
            continue
        if field[1] == b"data":
            data.append(field[2] or b"")
        else:
            name = field[2] or b""
    return b"\n".join(data), name


def _is_empty(value: object) -> bool:
    return value is None or value is False or value == "" or value == [] or value == ()


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _pairs(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        yield from value


def _holds(delta: object) -> bool:
    """Whether a delta, or a message in its place, has content."""
    if isinstance(delta, tuple):
        return any(key not in _FRAME_OF_DELTA and not _is_empty(value) for key, value in delta)
    return not _is_empty(delta)


class _Walk:
    """Over one event: what was seen outside its choices."""

    def __init__(self, found: Event) -> None:
        self.found = found
        self.texts: list[bool] = []  # outside choices: whether each held something
        self.has_choices = self.has_meta_info = self.is_done = False
        self.index = 0
        self.type = ""

    def over(self, data: bytes, name: str) -> None:
        try:
            document = parsed(data)
        except ValueError:
            document = None
        self.found.object = isinstance(document, tuple)
        for key, value in _pairs(document):
            if (see := getattr(self, f"_see_{key}", None)) is not None:
                see(value)
        self._judge(self.type or name)

    def _see_choices(self, value: object) -> None:
        self.has_choices = True
        for choice in value if isinstance(value, list) else ():
            if isinstance(choice, tuple):
                self._see_choice(choice)

    def _see_choice(self, choice: Object) -> None:
        index = n = 0
        holds = False
        for key, value in choice:
            if key == "index":
                index = _count(value)
            elif key in ("delta", "text", "message"):
                holds = _holds(value) or holds
            elif key == "token_ids":
                n = len(value) if isinstance(value, list) else 0
        if n or holds:
            self.found.count(index, n or 1)

    def _see_usage(self, value: object) -> None:
        for key, count in _pairs(value):
            if key in ("completion_tokens", "output_tokens"):
                self.found.usage = max(self.found.usage, _count(count))

    def _see_eval_count(self, value: object) -> None:
        self.found.usage = max(self.found.usage, _count(value))

    def _see_meta_info(self, value: object) -> None:
        self.has_meta_info = True
        self._see_usage(value)

    def _see_message(self, value: object) -> None:
        for key, inner in _pairs(value):
            if key == "usage":
                self._see_usage(inner)
            elif key in ("content", "thinking", "tool_calls"):
                self._see_text(inner)

    def _see_response(self, value: object) -> None:
        if isinstance(value, str):
            self._see_text(value)
        else:
            self._see_message(value)

    def _see_text(self, value: object) -> None:
        self.texts.append(not _is_empty(value))

    _see_thinking = _see_text

    def _see_delta(self, value: object) -> None:
        self.texts.append(_holds(value))

    def _see_token_ids(self, value: object) -> None:
        self.texts.append(isinstance(value, list) and bool(value))

    _see_output_ids = _see_token_ids

    def _see_index(self, value: object) -> None:
        self.index = _count(value)

    def _see_type(self, value: object) -> None:
        self.type = value if isinstance(value, str) else self.type

    def _see_error(self, value: object) -> None:
        self.found.error = self.found.error or not _is_empty(value)

    def _see_object(self, value: object) -> None:
        self.found.error = self.found.error or value == "error"

    def _see_done(self, value: object) -> None:
        self.is_done = self.is_done or value is True

    def _judge(self, type: str) -> None:
        found = self.found
        found.error = found.error or type in ("error", "response.failed")
        self.is_done = self.is_done or type in _ENDS
        found.done = found.done or self.is_done
        is_silent = type in _SILENT or ("." in type and type.rpartition(".")[2] in _SILENT_PHASES)
        if self.has_choices or found.error or is_silent:
            return
        if any(self.texts) or not (self.texts or self.is_done):
            found.count(self.index if self.has_meta_info else 0, 1)


def whole(body: bytes) -> Event:
    """What a body that is one document states of itself: usage, an error. Its content is not counted."""
    found = Event()
    try:
        document = parsed(body)
    except ValueError:
        return found
    for entry in document if isinstance(document, list) else [document]:
        one = Event()
        walk = _Walk(one)
        for key, value in _pairs(entry):
            if key in ("usage", "meta_info"):
                walk._see_usage(value)
            elif key == "eval_count":
                walk._see_eval_count(value)
            elif key in ("response", "message"):
                walk._see_usage(dict(_pairs(value)).get("usage"))
            elif key == "error":
                walk._see_error(value)
            elif key in ("object", "type"):
                walk._see_object(value)
        found.usage += one.usage
        found.error = found.error or one.error
    return found
