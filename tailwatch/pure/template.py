"""Frames with holes: csrc/python/sse/template.c and encoder.c in Python, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_MOST_HOLES = 32


class PureTemplate:
    """As tailwatch._hot.Template: bytes with holes for texts and numbers. Each hole is (offset in the literal, whether
    it takes a number). Nothing scans frames here: ``known`` is False."""

    __slots__ = ("_ascii", "_numbers", "_original", "_pieces", "holes", "known", "literal")

    def __init__(
        self,
        literal: bytes,
        holes: tuple[tuple[int, bool], ...],
        ascii: bool = False,
        original: Callable[[str], object] | None = None,
    ) -> None:
        cuts = [at for at, _ in holes]
        if cuts != sorted(cuts) or any(not 0 <= at <= len(literal) for at in cuts):
            raise ValueError(f"holes: offsets {cuts} are outside the literal or not ascending")
        self.literal = literal
        self.holes = len(holes)
        self.known = False
        self._numbers = tuple(number for _, number in holes)
        self._pieces = [literal[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(literal)], strict=True)]
        self._ascii = ascii
        self._original = original

    def splice(self, text: str, /) -> bytes:
        """The frame with text, escaped, in its one hole."""
        if self._numbers != (False,):
            raise TypeError(
                f"splice() is for a template with one hole, for a text; this one has {self.holes}: use fill()"
            )
        return self.fill(text)

    def fill(self, *values: str | int) -> bytes:
        """The frame with a text or a number in each hole."""
        if len(values) != self.holes:
            raise TypeError(f"fill() takes {self.holes} values, one for each hole; {len(values)} given")
        parts = [self._pieces[0]]
        for value, number, piece in zip(values, self._numbers, self._pieces[1:], strict=True):
            parts += [self._digits(value) if number else self._text(value), piece]
        return b"".join(parts)

    def _digits(self, value: object) -> bytes:
        if type(value) is not int:
            raise TypeError("number: expected int")
        return b"%d" % value

    def _text(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"text: expected str, found {type(value).__name__}")
        try:
            return json.dumps(value, ensure_ascii=self._ascii)[1:-1].encode()
        except UnicodeEncodeError:
            if self._original is None:
                raise
            self._original(value)  # raises the imitated serialiser's own error
            raise ValueError("the text holds half a surrogate pair") from None


class PureEncoder:
    """As tailwatch._hot.Encoder: content(text) fills ``_template``; anything more is given to ``_content()``."""

    _template: PureTemplate | None = None
    _sequence: int = 0

    def content(self, *args: Any, **options: Any) -> bytes:
        """The frame of a piece of generated text: bytes, ready to send."""
        template = self._template
        if template is None or len(args) != 1 or options:
            return self._content(*args, **options)  # type: ignore[attr-defined,no-any-return]
        if template.holes == 1:
            return template.splice(args[0])
        numbered = template._numbers[0]
        frame = template.fill(*((self._sequence, args[0]) if numbered else (args[0], self._sequence)))
        self._sequence += 1
        return frame
