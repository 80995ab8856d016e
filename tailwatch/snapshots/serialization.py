"""A snapshot as JSON, and read back: what Snapshot.as_dict() wrote, with the attributes of a Snapshot.

What is read back holds what was written and nothing else: a histogram answers for the stored percentiles only, and a
window that was not stored is empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args, get_origin, get_type_hints

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.snapshots import model

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot


def encode(value: Any) -> Any:
    """A value of a snapshot as JSON takes it: a dataclass or named tuple by field and property, a mapping by tuples as
    rows, what is infinite as None."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value):
        properties = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        return {name: encode(getattr(value, name)) for name in (*(each.name for each in fields(value)), *properties)}
    if hasattr(value, "_asdict"):
        return encode(value._asdict())
    if isinstance(value, Mapping):
        rows = any(isinstance(key, tuple) for key in value)
        return [[*key, each] for key, each in value.items()] if rows else {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, Saved):
        return {name: encode(member) for name, member in vars(value).items() if not name.startswith("_")}
    if isinstance(value, (list, tuple)):
        return [encode(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and math.isinf(value) else value


class Saved:
    """Read-only attributes."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a saved snapshot is read-only: {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class SavedHistogram(Saved):
    """count, sum, min, max and the percentiles that were stored."""

    count: int
    sum: float
    min: float | None
    max: float | None

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(**{name: data[name] for name in ("count", "sum", "min", "max")})
        vars(self)["_stored"] = {float(percent): value for percent, value in data["p"].items()}

    def __len__(self) -> int:
        return self.count

    @property
    def mean(self) -> float | None:
        """Seconds; None when empty."""
        return self.sum / self.count if self.count else None

    def p(self, percent: float) -> float | None:
        """A stored percentile in seconds, None when empty; OptionError for one that was not stored."""
        stored: dict[float, float | None] = vars(self)["_stored"]
        if not self.count:
            return None
        if percent not in stored:
            known = ", ".join(f"{key:g}" for key in sorted(stored))
            raise OptionError.of("percent", percent, f"this snapshot was saved with the percentiles {known}")
        return stored[percent]


class SavedSnapshot(Saved):
    """The attributes of a Snapshot."""

    def window(self, window: str | float = "1m") -> Saved:
        """A stored rolling window; an empty one where it was not stored."""
        stored: Mapping[str, Saved] = vars(self)["windows"]
        return stored.get(str(window), _EMPTY_WINDOW)


_EMPTY_WINDOW = Saved(good=0, miss=0, excluded=0, finished=0, attainment=None, within={}, fluidity=None, seconds=0.0)

_ROWS = dict[tuple[str, str], int]

# What JSON cannot hold as it is, by attribute of a Snapshot. The rest is plain, and read as it was written.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("ttft", "itl", "itl_without_gc", "tpot", "e2e", "abandoned_wait", "send_wait"), SavedHistogram),
    "queue": dict[str, SavedHistogram],
    "stalls": dict[str, SavedHistogram],
    "labels": list[tuple[str, str]],
    "sse_fallbacks": _ROWS,
    "gc": model.GC,
    "processes": list[model.Process],
    "steps": list[model.Step],
    "engines": list[model.EngineSteps],
    "slowest": list[model.SlowGap],
    "recent": list[model.SlowGap],
    "tail": dict[str, list[model.Octave]],
    "slo": model.Bounds,
    "windows": dict[str, model.Window],
}
# What earlier versions did not write.
_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("sse_fallbacks", "steps", "engines", "recent"), ()),
    **{name: {} for name in ("windows", "overlap_by_source", "delay_by_source", "delays", "unexplained", "stalls")},
    "explained": None,
}


def encode_attribute(name: str, value: Any) -> Any:
    """encode() of an attribute of a Snapshot: a mapping by tuples is a list of rows without any row, too."""
    return [] if _TYPES.get(name) is _ROWS and not value else encode(value)


def from_dict(data: Mapping[str, Any]) -> Snapshot:
    """The snapshot that Snapshot.as_dict() described; TailwatchError where data is no such description."""
    try:
        members = {**_ABSENT, **data}
        members |= {name: _decode(kind, members[name]) for name, kind in _TYPES.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TailwatchError(
            f"this is not a saved tailwatch snapshot (Snapshot.as_dict() as JSON): {reason}"
        ) from error
    return cast("Snapshot", SavedSnapshot(**members))


def _decode(kind: Any, data: Any) -> Any:
    """What encode() made of a value of this type; a dataclass or named tuple as the attributes that were written."""
    args = get_args(kind)
    if get_origin(kind) is dict:
        rows = data.items() if isinstance(data, Mapping) else ((tuple(row[:-1]), row[-1]) for row in data)
        return {_key(args[0], key): _decode(args[1], value) for key, value in rows}
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(_decode(args[0], each) for each in data)
    if kind is SavedHistogram:
        return SavedHistogram(data)
    if kind is datetime:
        return _moment(data)
    if kind is float:
        return math.inf if data is None else data
    return _saved(kind, data) if isinstance(kind, type) and hasattr(kind, "__annotations__") else data


def _key(kind: Any, key: Any) -> Any:
    return int(key) if kind == int | str and key.isdigit() else key


def _moment(data: str | float) -> datetime:
    if isinstance(data, str):
        return datetime.fromisoformat(data.replace("Z", "+00:00"))
    return datetime.fromtimestamp(data, timezone.utc)


@cache
def _fields(kind: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The types of its fields, and the values of those that need not be there."""
    hints = get_type_hints(kind, localns={"Histogram": SavedHistogram})
    absent = {name: None for name, hint in hints.items() if type(None) in get_args(hint)}
    for each in fields(kind) if is_dataclass(kind) else ():
        if each.default_factory is not MISSING:
            absent[each.name] = each.default_factory()
        elif each.default is not MISSING:
            absent[each.name] = each.default
    return hints, absent


def _saved(kind: type, data: Any) -> Saved:
    """A named tuple may be a list. Of a plain field that is missing there is no attribute."""
    hints, absent = _fields(kind)
    named = data if isinstance(data, Mapping) else dict(zip(hints, data, strict=False))
    needed = {name: hint for name, hint in hints.items() if name in named or hint in (datetime, SavedHistogram)}
    return Saved(**{**absent, **named, **{name: _decode(hint, named[name]) for name, hint in needed.items()}})
