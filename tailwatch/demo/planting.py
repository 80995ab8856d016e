"""In the demo's server: stalls planted one after the other, and the late tokens that each made."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tailwatch.demo import plants

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from tailwatch.demo.pipe import Line
    from tailwatch.snapshots.model import SlowGap

BEFORE_SECONDS, AFTER_SECONDS = 0.4, 0.3
PATIENCE_SECONDS = 20.0
LEAST_GAPS = 50  # seen before the first plant: without traffic no token is late
CLEAR_SECONDS = 0.005  # so late is a token that is taken for the plant's
OWN_SHARE = 0.5  # of its lateness that coincides with the plant
REST = ("unexplained", "upstream")


class Planting(threading.Thread):
    """found: of each plant when it was there, and the late tokens with their causes; seconds."""

    def __init__(self, loop: AbstractEventLoop, names: list[str], rounds: int) -> None:
        super().__init__(name="planting", daemon=True)
        self._loop, self._names, self._rounds = loop, names, rounds
        self.found: dict[str, Line] = {}

    def run(self) -> None:
        """Each plant so many times, once there is traffic."""
        _wait_for_gaps()
        for name in self._names * self._rounds:
            line = self.found.setdefault(name, {"seconds": 0.0, "tokens": []})
            began, ended = self._plant(name)
            line["seconds"] += ended - began
            line["tokens"] += [described(gap) for gap in late_tokens(began, ended)]

    def _plant(self, name: str) -> tuple[float, float]:
        """Its begin and end by its own log; seconds, CLOCK_MONOTONIC. Equal where it did not come to an end."""
        plants.prepare(name)
        before = len(plants.log)
        time.sleep(BEFORE_SECONDS)
        self._loop.call_soon_threadsafe(plants.start, self._loop, name)
        until = time.monotonic() + PATIENCE_SECONDS
        while len(plants.log) == before and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(AFTER_SECONDS)
        _, began, ended = plants.log[-1] if len(plants.log) > before else ("", 0, 0)
        return began / 1e9, ended / 1e9


def _wait_for_gaps() -> None:
    import tailwatch

    until = time.monotonic() + PATIENCE_SECONDS
    while tailwatch.snapshot().itl.count < LEAST_GAPS and time.monotonic() < until:
        time.sleep(0.02)


def late_tokens(began: float, ended: float) -> list[SlowGap]:
    """The slow gaps that coincide with a plant for most of what they are late."""
    import tailwatch

    snapshot = tailwatch.snapshot()
    ahead = time.time() - time.monotonic()
    kept = {(gap.when, gap.request_id, gap.token): gap for gap in (*snapshot.recent, *snapshot.slowest)}
    return [gap for gap in kept.values() if _is_of(gap, began + ahead, ended + ahead)]


def _is_of(gap: SlowGap, began: float, ended: float) -> bool:
    until, excess = gap.when.timestamp(), gap.gap - gap.typical
    overlap = min(until, ended) - max(until - gap.gap, began)
    return gap.phase == "itl" and excess >= CLEAR_SECONDS and overlap >= OWN_SHARE * excess


def described(gap: SlowGap) -> Line:
    """A late token as the command reads it."""
    from tailwatch.diagnose.text import what_of

    causes: list[dict[str, Any]] = [
        {"cause": each.cause, "seconds": each.seconds, "what": what_of(each), "certainty": each.certainty}
        for each in gap.causes
    ]
    return {"late": gap.gap - gap.typical, "causes": causes}
