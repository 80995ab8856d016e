"""A server's frame as a table: its keys in the order of the wire, with slots where a stream's values go.

A table is written once by the serialiser it imitates, with marks in the slots that change from frame to frame; what is
between the marks becomes a template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from tailwatch import _hot
from tailwatch.sse import dialect as dialects
from tailwatch.sse import validation

Table = Mapping[str, object]


class Leave(Enum):
    """What a slot may hold instead of a value."""

    OUT = "the key is left out"
    EMPTY = "a value must be given"


OUT: Final = Leave.OUT


class Slot(NamedTuple):
    """Where a value goes, and what stands there when none is given."""

    name: str
    default: object = Leave.EMPTY


def fill(table: object, values: Mapping[str, object]) -> object:
    """The table with its slots filled; a value may be a table itself."""
    if isinstance(table, Slot):
        return fill(_value(table, values), values)
    if isinstance(table, dict):
        pairs = [(key, fill(value, values)) for key, value in table.items()]
        return {key: value for key, value in pairs if value is not OUT}
    if isinstance(table, list):
        return [fill(entry, values) for entry in table]
    return table


def _value(slot: Slot, values: Mapping[str, object]) -> object:
    return values[slot.name] if slot.default is Leave.EMPTY else values.get(slot.name, slot.default)


def _slots(table: object) -> Iterator[str]:
    if isinstance(table, Slot):
        yield table.name
        yield from _slots(table.default)
    elif isinstance(table, dict | list):
        for entry in table.values() if isinstance(table, dict) else table:
            yield from _slots(entry)


class Frame:
    """An SSE frame whose data is a table."""

    __slots__ = ("before", "dialect", "slots", "table")

    def __init__(self, table: Table, dialect: str = "pydantic", event: str = "") -> None:
        self.table = table
        self.dialect = dialects.named(dialect)
        self.before = f"event: {event}\ndata: ".encode() if event else b"data: "
        self.slots = frozenset(_slots(table))

    def write(self, values: Mapping[str, object]) -> bytes:
        """The frame with these values; an OptionError where one of them, being JSON already, holds a line end."""
        return self.before + validation.json_line("frame", self.dialect.dumps(fill(self.table, values))) + b"\n\n"

    def template(
        self, values: Mapping[str, object], texts: tuple[str, ...] = ("text",), numbers: tuple[str, ...] = ()
    ) -> tuple[_hot.Template, tuple[str, ...]]:
        """The frame with these slots left open, and the slots' names in the order that its holes have."""
        marked, marks = self._marked(values, (*texts, *numbers))
        holes = sorted((_place(marked, marks[name], name in numbers), name) for name in marks)
        return (
            make_template(marked, [(*place, name in numbers) for place, name in holes], self.dialect),
            tuple(name for _, name in holes),
        )

    def _marked(self, values: Mapping[str, object], names: tuple[str, ...]) -> tuple[bytes, dict[str, str]]:
        """The frame with a text in each slot that stands nowhere else in it, and those texts."""
        tag = "slot"
        while True:
            marks = {name: f"<{tag}{i}>" for i, name in enumerate(names)}
            marked = self.write({**values, **marks})
            if all(marked.count(mark.encode()) == 1 for mark in marks.values()):
                return marked, marks
            tag += "+"


def _place(marked: bytes, mark: str, number: bool) -> tuple[int, int]:
    """From where to where a mark stands; that of a number with its quotes."""
    wanted = f'"{mark}"'.encode() if number else mark.encode()
    start = marked.index(wanted)
    return start, start + len(wanted)


def make_template(frame: bytes, holes: list[tuple[int, int, bool]], dialect: dialects.Dialect) -> _hot.Template:
    """The frame without the bytes of these holes: (from, to, whether a number goes there)."""
    pieces, cuts, start, length = [], [], 0, 0
    for begin, end, number in holes:
        pieces.append(frame[start:begin])
        length += begin - start
        cuts.append((length, number))
        start = end
    pieces.append(frame[start:])
    return _hot.Template(b"".join(pieces), tuple(cuts), dialect.ascii, _original(dialect, pieces))


def _original(dialect: dialects.Dialect, pieces: list[bytes]) -> Callable[[str], object]:
    """What raises the serialiser's own error for a text. That of json-utf8 comes from encoding the whole frame."""
    if dialect.name != "json-utf8":
        return dialect.dumps
    before, after = pieces[0].decode()[:-1], pieces[-1].decode()[1:]

    def encode(text: str) -> bytes:
        return (before + json.dumps(text, ensure_ascii=False) + after).encode()

    return encode


class Shape(NamedTuple):
    """One server's frames of one kind of stream.

    Attributes:
        frames: by kind (role, content, reasoning, tool_call, finish, usage, error); what it never sends is missing.
        usage: the table of the usage that rides on other chunks.
        zero_is_detail: 0 reasoning tokens are sent in detail, too.
        usage_is_null: asked for usage, its other chunks have null.
        fingerprint_is_last: in the last chunk only (the one with the usage, where that was asked for).
    """

    frames: Mapping[str, Frame]
    usage: Table
    zero_is_detail: bool = True
    usage_is_null: bool = False
    fingerprint_is_last: bool = False
