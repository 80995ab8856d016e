"""The grammars of ``trace_on`` and ``trace_keep``, and the range of ``trace_events``.

gap>100ms,ttft>1s,slo       a gap, a wait for a first token, a request that misses its bounds
5,100MB                     five files, a hundred million bytes together
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from tailwatch.errors import OptionError

LEAST_EVENTS, MOST_EVENTS = 256, 2**28
_UNIT_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_UNIT_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_PART = re.compile(r"\s*(gap|ttft)\s*>=?\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(us|ms|s|m)\s*")
_KEEP = re.compile(r"\s*([0-9]{1,6})\s*,\s*([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*([kmg]i?b|)\s*")
_LONGEST_NS = 3600 * 10**9
_GRAMMAR = "expected 'gap>100ms', 'ttft>1s' or 'slo', or several of them with commas"
_KEEP_GRAMMAR = "expected a number of files and a total size, like '5,100MB'"


@dataclass(frozen=True, slots=True)
class Triggers:
    """Events whose surrounding seconds are kept as a trace file. Nanoseconds; 0: not for this kind of event."""

    gap_ns: int = 0
    ttft_ns: int = 0
    slo: bool = False

    def __bool__(self) -> bool:
        return bool(self.gap_ns or self.ttft_ns or self.slo)

    def __str__(self) -> str:
        parts = [f"{name}>{ns / 1e6:g}ms" for name, ns in (("gap", self.gap_ns), ("ttft", self.ttft_ns)) if ns]
        return ",".join([*parts, *(["slo"] if self.slo else [])])

    @classmethod
    def parse(cls, text: object, *, source: str | None = None) -> Triggers:
        """Of the option's text, "" for none.

        Raises:
            OptionError: anything else.
        """
        found: dict[str, int] = {}
        if not isinstance(text, str):
            raise OptionError.of("trace_on", text, _GRAMMAR, source=source)
        for part in text.split(",") if text.strip() else []:
            name, ns = ("slo", 1) if part.strip() == "slo" else _bound(text, part, source)
            if name in found:
                raise OptionError.of("trace_on", text, f"expected each once, found {name!r} twice", source=source)
            found[name] = ns
        return cls(found.get("gap", 0), found.get("ttft", 0), "slo" in found)


def _bound(text: str, part: str, source: str | None) -> tuple[str, int]:
    match = _PART.fullmatch(part)
    ns = round(Decimal(match[2]) * _UNIT_NS[match[3]]) if match else 0
    if match is None or not 1000 <= ns <= _LONGEST_NS:
        expected = f"{_GRAMMAR}, from 1us to 60m; found {part.strip()!r}"
        raise OptionError.of("trace_on", text, expected, source=source)
    return match[1], ns


@dataclass(frozen=True, slots=True)
class Keep:
    """The number and the total bytes of the trace files to keep."""

    files: int = 5
    bytes: int = 100_000_000

    def __str__(self) -> str:
        return f"{self.files},{self.bytes}"

    @classmethod
    def parse(cls, text: object, *, source: str | None = None) -> Keep:
        """Of the option's text.

        Raises:
            OptionError: it is none.
        """
        match = _KEEP.fullmatch(text.lower()) if isinstance(text, str) else None
        if match is None:
            raise OptionError.of("trace_keep", text, _KEEP_GRAMMAR, source=source)
        return cls(int(match[1]), int(Decimal(match[2]) * _UNIT_BYTES[match[3]]))
