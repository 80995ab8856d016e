"""The SLO: bounds on one request, their grammar, and presets.

    ttft<=500ms,tpot<=40ms,itl<=200ms,e2e<=10s@99%

Each bound at most once, at least one; units us, ms, s, m; blanks anywhere between words; itl is the worst gap of the
request. `@` gives the share of requests that must be good (default 99%).
The counting itself happens where the tokens are stamped (csrc/stamp/stream.c), by the same definitions.
"""

from __future__ import annotations

import math
import numbers
import operator
import re
from dataclasses import dataclass, field
from decimal import Decimal

from tailwatch.errors import OptionError

BOUNDS = ("ttft", "tpot", "itl", "e2e")
MISSES = ("late", "error", "429", "5xx", "timeout", "abort_late")
EXCLUDED = ("4xx", "abort_early", "3xx")
REASONS = ("good", *MISSES, *EXCLUDED)

# MLPerf Inference rules of 2026-07, server and interactive scenarios: p99 of TTFT and of TPOT, milliseconds.
_MLPERF_MS = {
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "llama3.1-405b": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "mixtral-8x7b": (2000, 200),
    "deepseek-r1": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 20),
}
PRESETS = {f"mlperf:{name}": f"ttft<={ttft}ms,tpot<={tpot}ms@99%" for name, (ttft, tpot) in _MLPERF_MS.items()}

_UNIT_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_NUMBER = r"(?:[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})"
_BOUND = re.compile(rf"\s*([a-z0-9]+)\s*<=\s*({_NUMBER})\s*(us|ms|s|m)\s*")
_ATTAINMENT = re.compile(rf"\s*({_NUMBER})\s*%\s*")
_WINDOW = re.compile(r"\s*([0-9]{1,12})\s*([smh]?)\s*")
_SHORTEST_NS, _LONGEST_NS = 1_000, 24 * 3600 * 1_000_000_000
_GRAMMAR = "expected bounds like 'ttft<=500ms,tpot<=40ms@99%' or a preset like 'mlperf:llama2-70b'"
LONGEST_WINDOW = 3600


@dataclass(frozen=True, slots=True)
class SLO:
    """Bounds on one request, and the share of requests that must keep them all.

    Times are seconds, kept to the nanosecond, 1 us to 24 h; None: no such bound. attainment is in (0, 1], kept
    to the millionth. text is what parse() takes to give an equal SLO. OptionError for anything else.
    """

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None
    attainment: float = 0.99
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in BOUNDS:
            object.__setattr__(self, name, _checked_bound(name, getattr(self, name)))
        object.__setattr__(self, "attainment", _checked_attainment(self.attainment))
        if all(getattr(self, name) is None for name in BOUNDS):
            raise OptionError.of("slo", self.text, f"{_GRAMMAR}; at least one bound is needed")
        if not self.text:
            object.__setattr__(self, "text", self._canonical())

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str, *, source: str | None = None) -> SLO:
        """Reads the grammar above or the name of a preset. source: the environment variable, for the error."""
        if not isinstance(text, str):
            raise OptionError.of("slo", text, _GRAMMAR, source=source)
        body, at, share = text.strip().lower().partition("@")
        body = body.strip()
        if body.partition(":")[0].strip() == "mlperf" and body not in PRESETS:
            names = ", ".join(repr(name) for name in PRESETS)
            raise OptionError.of("slo", text, f"expected one of the presets {names}", source=source, choices=PRESETS)
        bounds = _read_bounds(text, PRESETS.get(body, body).partition("@")[0], source)
        attainment = _read_attainment(text, share, source) if at else 0.99
        name = body + (f"@{_percent(attainment)}%" if attainment != 0.99 else "") if body in PRESETS else ""
        return cls(**{bound: bounds.get(bound) for bound in BOUNDS}, attainment=attainment, text=name)

    def as_core(self) -> tuple[int, int, int, int, int]:
        """(ttft, tpot, itl, e2e) in ns, 0 where there is no bound, and the attainment in parts per million."""
        ttft, tpot, itl, e2e = (_ns(getattr(self, name) or 0.0) for name in BOUNDS)
        return ttft, tpot, itl, e2e, round(self.attainment * 1e6)

    @property
    def deadlines(self) -> tuple[float | None, float | None]:
        """Seconds allowed for the first token and for each next one, as the fluidity counts them: the next one
        has the tpot bound, or the itl bound where there is no tpot."""
        return self.ttft, self.tpot if self.tpot is not None else self.itl

    def broken(
        self,
        *,
        ttft: float | None = None,
        tpot: float | None = None,
        itl: float | None = None,
        e2e: float | None = None,
    ) -> tuple[str, ...]:
        """Names of the bounds that these times (seconds; None: not known, never broken) exceed."""
        measured = {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
        return tuple(name for name, value in measured.items() if _exceeds(value, getattr(self, name)))

    def _canonical(self) -> str:
        bounds = [f"{name}<={_duration(_ns(getattr(self, name)))}" for name in BOUNDS if getattr(self, name)]
        return f"{','.join(bounds)}@{_percent(self.attainment)}%"


_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*(ms|s|m|h|)")
_UNIT_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str, bare: str = "s") -> float:
    """Seconds of "10s", "500ms", "2m", "1h"; bare: the unit of a number without one. NaN for anything else."""
    match = _LENGTH.fullmatch(text.strip().lower())
    return float(match[1]) * _UNIT_SECONDS[match[2] or bare] if match else math.nan


def duration(text: str) -> float:
    """parse_duration() as the type of an argument: ValueError for what is none."""
    if math.isnan(seconds := parse_duration(text)):
        raise ValueError(text)
    return seconds


def parse_window(window: str | float) -> int:
    """Whole seconds of "90s", "90", "1m", "1h" or a number of seconds; 1 to 3600, else OptionError."""
    expected = "expected a window of 1s to 1h in whole seconds, like '1m', '90s' or 90"
    if isinstance(window, str):
        match = _WINDOW.fullmatch(window.lower())
        seconds = int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0
    else:
        seconds = _whole(window)
    if not 1 <= seconds <= LONGEST_WINDOW:
        raise OptionError.of("window", window, expected)
    return seconds


def real(value: object) -> float:
    """A number as a float; NaN for anything that is none: text, True and False, what a float cannot hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _whole(value: object) -> int:
    """A number as an integer; 0 for anything that is not a whole number."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else 0
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _exceeds(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value > bound


def _read_bounds(text: str, body: str, source: str | None) -> dict[str, float]:
    bounds: dict[str, float] = {}
    for part in body.split(","):
        name, seconds = _read_bound(text, part, source)
        if name in bounds:
            raise OptionError.of("slo", text, f"expected each bound once, found {name!r} twice", source=source)
        bounds[name] = seconds
    return bounds


def _read_bound(text: str, part: str, source: str | None) -> tuple[str, float]:
    match = _BOUND.fullmatch(part)
    if match is None:
        raise OptionError.of("slo", text, f"{_GRAMMAR}; found {part.strip()!r}{_why(part)}", source=source)
    name, number, unit = match.groups()
    if name not in BOUNDS:
        expected = f"expected bounds on 'ttft', 'tpot', 'itl' or 'e2e', found {name!r}"
        raise OptionError.of("slo", text, expected, source=source)
    ns = round(Decimal(number) * _UNIT_NS[unit])
    if not _SHORTEST_NS <= ns <= _LONGEST_NS:
        expected = f"expected times from 1us to 24 hours, found {part.strip()!r}"
        raise OptionError.of("slo", text, expected, source=source)
    return name, ns / 1e9


def _why(part: str) -> str:
    """What most likely is wrong with a bound that does not parse."""
    if re.fullmatch(rf"\s*[a-z0-9]+\s*<=?\s*{_NUMBER}\s*", part):
        return " (the unit is missing: us, ms, s or m)"
    if ">" in part:
        return " (bounds are upper bounds: '<=')"
    if "<" in part and "<=" not in part:
        return " (a bound is included: write '<=')"
    return ""


def _read_attainment(text: str, share: str, source: str | None) -> float:
    match = _ATTAINMENT.fullmatch(share)
    ppm = round(Decimal(match[1]) * 10_000) if match else 0
    if not 1 <= ppm <= 1_000_000:
        expected = f"expected a share above 0% and up to 100% after '@', like '@99%', found {share.strip()!r}"
        raise OptionError.of("slo", text, expected, source=source)
    return ppm / 1e6


def _checked_bound(name: str, value: object) -> float | None:
    if value is None:
        return None
    seconds = real(value)
    if math.isfinite(seconds) and _SHORTEST_NS <= _ns(seconds) <= _LONGEST_NS:
        return _ns(seconds) / 1e9
    raise OptionError.of(f"slo.{name}", value, "expected seconds, 1e-06 to 86400, or None")


def _checked_attainment(value: object) -> float:
    share = real(value)
    if 1e-6 <= share <= 1:
        return round(share * 1e6) / 1e6
    raise OptionError.of("slo.attainment", value, "expected a share above 0 and up to 1, like 0.99")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _percent(attainment: float) -> str:
    return _plain(Decimal(round(attainment * 1e6)) / 10_000)


def _duration(ns: int) -> str:
    unit = next(unit for unit in ("s", "ms", "us") if ns >= _UNIT_NS[unit] or unit == "us")
    return _plain(Decimal(ns) / _UNIT_NS[unit]) + unit


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
