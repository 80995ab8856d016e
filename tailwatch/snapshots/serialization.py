"""A snapshot read back from JSON: what Snapshot.as_dict() wrote, with the attributes of a Snapshot.

It holds what was written and nothing else: a histogram answers for the stored percentiles only, and a window
that was not stored is empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.options.slo import BOUNDS

if TYPE_CHECKING:
    from tailwatch.snapshots import Snapshot

_HISTOGRAMS = ("ttft", "itl", "itl_without_gc", "tpot", "e2e", "abandoned_wait", "send_wait")
_PLAIN = (
    *("taken", "seconds", "requests", "outcomes", "tokens", "in_flight", "opened", "attainment", "fluidity"),
    *("paused", "overlap", "late", "overlap_by_phase", "late_by_phase", "arrivals", "drops", "errors"),
    "label_overflow",
)


_NO_POLICY: dict[str, Any] = {
    **dict.fromkeys(("mode", "why"), ""),
    **{name: {} for name in ("slices", "passes", "drift", "ceilings")},
    **dict.fromkeys(("moved", "freed", "pass_freed", "rounds", "freezes", "debt", "ignored", "answered", "answer"), 0),
    **dict.fromkeys(("seconds", "predicted_seconds", "pass_seconds", "cost"), 0.0),
    **{"kind": "unknown", "unfrozen": None, "frozen": None},
}


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
        stored: Mapping[str, Saved] = vars(self)["_windows"]
        return stored.get(str(window), _EMPTY_WINDOW)


_EMPTY_WINDOW = Saved(good=0, miss=0, excluded=0, finished=0, attainment=None, within={}, fluidity=None, seconds=0.0)


def from_dict(data: Mapping[str, Any]) -> Snapshot:
    """The snapshot that Snapshot.as_dict() described; TailwatchError where data is no such description."""
    try:
        members = _members(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TailwatchError(
            f"this is not a saved tailwatch snapshot (Snapshot.as_dict() as JSON): {reason}"
        ) from error
    return cast("Snapshot", SavedSnapshot(**members))


def _members(data: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {name: data[name] for name in _PLAIN}
    members.update({name: SavedHistogram(data[name]) for name in _HISTOGRAMS})
    members["queue"] = {stage: SavedHistogram(value) for stage, value in data["queue"].items()}
    members["labels"] = [tuple(pair) for pair in data["labels"]]
    members["sse_fallbacks"] = {(shape, reason): n for shape, reason, n in data.get("sse_fallbacks", ())}
    members.update({name: data.get(name, {}) for name in ("overlap_by_source", "late_by_source")})
    members["gc"] = _gc(data["gc"])
    members["processes"] = [_process(process) for process in data["processes"]]
    members["steps"] = [_step(step) for step in data.get("steps", ())]
    members["slowest"] = [_slow(slow) for slow in data["slowest"]]
    members["tail"] = {phase: [_octave(octave) for octave in octaves] for phase, octaves in data["tail"].items()}
    members["slo"] = _slo(data["slo"])
    members["_windows"] = {name: Saved(**window) for name, window in data.get("windows", {}).items()}
    return members


def _gc(data: Mapping[str, Any]) -> Saved:
    pauses = {int(key) if key.isdigit() else key: SavedHistogram(value) for key, value in data["pauses"].items()}
    return Saved(**{**data, "pauses": pauses})


def _process(data: Mapping[str, Any]) -> Saved:
    """Of a version that told of no policy, too."""
    return Saved(**{**data, "policy": Saved(**{**_NO_POLICY, **data.get("policy", {})})})


def _step(data: Mapping[str, Any]) -> Saved:
    parts = {
        name: Saved(**{**data[name], "time": SavedHistogram(data[name]["time"])}) for name in ("steps", "host_gaps")
    }
    return Saved(**{**data, **parts})


def _slow(data: Mapping[str, Any]) -> Saved:
    when = data["when"]
    moment = (
        datetime.fromisoformat(when.replace("Z", "+00:00"))
        if isinstance(when, str)
        else datetime.fromtimestamp(when, timezone.utc)
    )
    others = tuple(Saved(**share) for share in data.get("others", ()))
    return Saved(**{**data, "when": moment, "others": others})


def _octave(data: Mapping[str, Any]) -> Saved:
    """The last octave is open-ended, which JSON may hold as null."""
    return Saved(**{**data, "upper": math.inf if data["upper"] is None else data["upper"]})


def _slo(data: Any) -> Saved:
    """Bounds by name, or as a list in the order ttft, tpot, itl, e2e, attainment."""
    values = dict(data) if isinstance(data, Mapping) else dict(zip((*BOUNDS, "attainment"), data, strict=False))
    return Saved(**{name: values.get(name) for name in BOUNDS}, attainment=values["attainment"])
