"""Template.learn: any server's frame, given once as an example, with new text in it from then on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from tailwatch.errors import OptionError
from tailwatch.sse import dialect as dialects
from tailwatch.sse.shape import make_template

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_KEY = re.compile(rb"[ \t\r\n]*:")
_LINE = re.compile(rb"[^\r\n]+")
_DATA = re.compile(rb"data(:|$)")


class Template:
    """A frame with one text left open.

    Attributes:
        splice: splice(text) gives the frame with that text in it, as bytes ready to send. A lone surrogate in the text
            raises what the imitated serialiser raises.
        dialect: name of that serialiser.
        known: whether the frames are sent without being scanned again.
    """

    __slots__ = ("_template", "dialect", "known", "splice")

    def __init__(self, frame: bytes, start: int, stop: int, dialect: dialects.Dialect) -> None:
        self._template = make_template(frame, [(start, stop, False)], dialect)
        self.splice = self._template.splice
        self.dialect = dialect.name
        self.known = self._template.known

    def __repr__(self) -> str:
        return f"<Template of {len(self._template.literal)} bytes, {self.dialect}>"

    @classmethod
    def learn(cls, example_frame: bytes | str, hole: str, *, dialect: str | None = None) -> Template:
        """The template of which the example is one frame.

        example_frame: one whole frame as the server sends it: any fields, any line ends, one line of JSON data (or
        a line of NDJSON). hole: the text as it was given to the serialiser; it must be exactly one value in the data.
        dialect: the serialiser: pydantic, orjson, msgspec, json (ASCII) or json-utf8. None: pydantic, whose bytes are
        those of all that leave no space between tokens; json.dumps without spaces looks like them, and has to
        be named.

        Raises:
            OptionError: it cannot be learned; the message has what was found instead. Also where no dialect is named
                and the example is json.dumps': its two dialects part where a text is not ASCII.
        """
        serialiser = dialects.named("pydantic" if dialect is None else dialect)
        frame = _as_bytes(example_frame)
        if not isinstance(hole, str):
            raise OptionError.of("hole", hole, "expected the text as a str")
        start, stop = _find(frame, hole)
        if dialect is None:
            _check_spaces(frame, hole)
        template = cls(frame, start, stop, serialiser)
        template._check(frame, frame[start:stop], hole)
        return template

    def _check(self, frame: bytes, found: bytes, hole: str) -> None:
        """Put back, the hole gives the example, byte for byte."""
        if _writes(self.dialect, hole) == found and self.splice(hole) == frame:
            return
        same = [name for name in dialects.DIALECTS if _writes(name, hole) == found]
        others = f"{' and '.join(same)} would" if same else "no dialect here would"
        raise OptionError.of("dialect", self.dialect, f"the example has {found!r} for the hole; {others} write that")


def _as_bytes(example: object) -> bytes:
    if isinstance(example, bytes | bytearray):
        return bytes(example)
    if not isinstance(example, str):
        raise OptionError.of("example_frame", example, "expected one frame as bytes or str")
    try:
        return example.encode()
    except UnicodeEncodeError:
        raise OptionError.of("example_frame", example, "expected text that UTF-8 can encode") from None


def _writes(dialect: str, text: str) -> bytes | None:
    try:
        return dialects.DIALECTS[dialect].dumps(text)[1:-1]
    except (TypeError, ValueError):
        return None


def _check_spaces(frame: bytes, hole: str) -> None:
    """Of json.dumps and json.dumps(ensure_ascii=False) an ASCII text does not show which it is."""
    between = _STRING.sub(b"", frame[slice(*_data(frame))])
    if (b": " in between or b", " in between) and _writes("json", hole) == _writes("json-utf8", hole):
        expected = (
            "the example has the spaces of json.dumps; name its dialect, 'json' or 'json-utf8' (ensure_ascii=False)"
        )
        raise OptionError.of("dialect", None, expected)


class _String(NamedTuple):
    """A JSON string in the data: where its inside is, its text, whether it is a key."""

    start: int
    stop: int
    text: str
    key: bool


def _find(frame: bytes, hole: str) -> tuple[int, int]:
    """Where the hole's escaped text stands in the frame."""
    start, stop = _data(frame)
    strings = list(_strings(frame, start, stop))
    found = [string for string in strings if string.text == hole and not string.key]
    if len(found) == 1:
        return found[0].start, found[0].stop
    raise OptionError.of("hole", hole, f"expected it as exactly one value in the data, found {_instead(strings, hole)}")


def _instead(strings: list[_String], hole: str) -> str:
    """What there is of the hole, in words."""
    values = sum(string.text == hole and not string.key for string in strings)
    if values:
        return f"{values}: give an example whose text stands nowhere else"
    if any(string.text == hole for string in strings):
        return "it as a key only"
    inside = [string.text for string in strings if hole in string.text and hole]
    return f"it only inside {inside[0]!r}" if inside else "none"


def _data(frame: bytes) -> tuple[int, int]:
    """Where the data stands that the frame carries; it is JSON."""
    lines = [(line.start(), line.end()) for line in _LINE.finditer(frame)]
    data = [(start, stop) for start, stop in lines if _DATA.match(frame, start, stop)]
    if len(data) > 1:
        raise OptionError.of("example_frame", frame, f"expected one data line, found {len(data)}")
    if data:
        start, stop = data[0][0] + len(b"data:"), data[0][1]
    elif len(lines) == 1:
        start, stop = lines[0]
    else:
        raise OptionError.of("example_frame", frame, "expected a data line, found none")
    try:
        json.loads(frame[start:stop])
    except ValueError:
        raise OptionError.of("example_frame", frame[start:stop], "expected JSON in the data") from None
    return start, stop


def _strings(frame: bytes, start: int, stop: int) -> Iterator[_String]:
    for string in _STRING.finditer(frame, start, stop):
        text = json.loads(string.group())
        yield _String(string.start() + 1, string.end() - 1, text, _KEY.match(frame, string.end(), stop) is not None)
