"""The grammar of ``gc_ceiling``: how much a process may grow before collections are made whether they fit or not.

rss=+256MB       resident memory, above what it was right after the freeze
rss=8GiB         the same, as a whole
objects=2000000  tracked objects that are not frozen
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from tailwatch.errors import OptionError, nearest

LEAST_RSS, MOST_RSS = 1_000_000, 2**50
LEAST_OBJECTS, MOST_OBJECTS = 1000, 10**12
_NAMES = ("rss", "objects")
_UNIT = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_RSS = re.compile(r"(\+?)\s*([0-9]{1,15}(?:\.[0-9]{1,3})?)\s*([kmg]i?b|b)", re.IGNORECASE)
_OBJECTS = re.compile(r"[0-9][0-9_]{0,20}")
_GRAMMAR = "expected 'rss=+256MB', 'objects=2000000', or both with a comma"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What may not be exceeded for long. 0: no such bound.

    Attributes:
        rss: resident memory, bytes.
        above_freeze: rss counts from what it was right after the freeze ("rss=+256MB").
        objects: tracked objects that are not frozen.
    """

    rss: int = 0
    above_freeze: bool = False
    objects: int = 0

    def __bool__(self) -> bool:
        return bool(self.rss or self.objects)

    def __str__(self) -> str:
        unit = next(name for name in ("GB", "GiB", "MB", "MiB", "KB", "B") if self.rss % _UNIT[name.lower()] == 0)
        rss = f"rss={'+' if self.above_freeze else ''}{self.rss // _UNIT[unit.lower()]}{unit}"
        return ",".join([*([rss] if self.rss else []), *([f"objects={self.objects}"] if self.objects else [])])

    @classmethod
    def parse(cls, text: object, *, source: str | None = None) -> Ceiling:
        """Of the option's text, "" for none.

        Raises:
            OptionError: anything else.
        """
        if not isinstance(text, str):
            raise OptionError.of("gc_ceiling", text, _GRAMMAR, source=source)
        found: dict[str, str] = {}
        for part in text.split(",") if text.strip() else []:
            name, equals, value = (each.strip() for each in part.partition("="))
            name = name.lower()
            if name not in _NAMES or not equals:
                hint = nearest(name, _NAMES)
                meant = f"; did you mean {hint!r}?" if hint and hint != name else ""
                raise OptionError.of("gc_ceiling", text, f"{_GRAMMAR}; found {part.strip()!r}{meant}", source=source)
            if name in found:
                raise OptionError.of("gc_ceiling", text, f"expected each once, found {name!r} twice", source=source)
            found[name] = value
        rss, above_freeze = _rss(text, found["rss"], source) if "rss" in found else (0, False)
        return cls(rss, above_freeze, _objects(text, found["objects"], source) if "objects" in found else 0)


def _rss(text: str, value: str, source: str | None) -> tuple[int, bool]:
    match = _RSS.fullmatch(value)
    number = int(Decimal(match[2]) * _UNIT[match[3].lower()]) if match else 0
    if match is None or not LEAST_RSS <= number <= MOST_RSS:
        expected = (
            "expected rss= bytes with a unit, 1MB to 1PB: '+256MB' above what it is after the freeze, '8GiB' as a whole"
        )
        raise OptionError.of("gc_ceiling", text, f"{expected}; found {value!r}", source=source)
    return number, bool(match[1])


def _objects(text: str, value: str, source: str | None) -> int:
    number = int(value.replace("_", "")) if _OBJECTS.fullmatch(value) else 0
    if not LEAST_OBJECTS <= number <= MOST_OBJECTS:
        expected = f"expected objects= a whole number from {LEAST_OBJECTS} to {MOST_OBJECTS}"
        raise OptionError.of("gc_ceiling", text, f"{expected}; found {value!r}", source=source)
    return number
