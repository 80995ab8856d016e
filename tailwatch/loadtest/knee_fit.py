"""The rate at which a server's misses reach their target, from probes at rates around it, with an honest interval.

Misses come together: one long queue is one event, however many waited in it, and it may be longer than a probe. So the
scatter is taken from stretches of time of every length, up to whole probes, and an interval is given only where enough
independent events were seen in enough stretches. Everything here is of settled windows (Probe.settled).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tailwatch.loadtest.proportions import FEWEST_STRETCHES, RunWindow
from tailwatch.loadtest.t_test import t_quantile
from tailwatch.loadtest.trial import Probe

LEVEL = 0.95
ENOUGH = 2.5  # independent events below which an interval is not to be believed
TOGETHER = 0.3  # of a relaxation time: how long the misses of one event last
# The waits of a queue fall off like exp(-room * t), so that its misses rise with the logarithm of the rate by about
# log(1 / misses) / room: the share of that which servers show (in the middle), and how far the logarithm of it spreads
# below and above. Few probes that happened to see a steep rise must not make an interval narrow.
RISE, SPREAD = 0.8, (0.6, 0.15)
WIDER = 1.05  # than the scatter seen, which few events show too small rather than too large
RISES = tuple(0.05 * 1.25**i for i in range(32))  # of that
AROUND, APART = 20.0, 0.08  # a probe shows the knee up to so many times the target's misses, so far from it
DRIFTED = 3.5  # standard errors between the misses of earlier and later halves from which they differ


@dataclass(frozen=True, slots=True)
class KneeFit:
    """rate, low, high: where the misses reach the target, and its 95 % interval. rise: of their log-odds over the
    logarithm of the rate. effect: how many requests are worth one independent one. events: independent misses, as many
    as these are worth. drift: standard errors by which the later halves of the probes missed more than the earlier
    ones. rates: lowest and highest that it is made of."""

    rate: float
    low: float
    high: float
    rise: float
    effect: float
    events: float
    drift: float
    rates: tuple[float, float]

    @property
    def enough(self) -> bool:
        """Whether so many independent events were seen that the interval can be believed."""
        return self.events >= ENOUGH

    @property
    def settled(self) -> bool:
        """Whether earlier and later halves agree."""
        return abs(self.drift) <= DRIFTED


@dataclass(frozen=True, slots=True)
class Line:
    """log-odds of a miss = level + rise * log(rate / middle)."""

    level: float
    rise: float
    middle: float

    def share(self, rate: float) -> float:
        """The share of misses at a rate."""
        return _share(self.level + self.rise * math.log(rate / self.middle))


def fit(probes: Sequence[Probe], target_misses: float, ceiling: float) -> KneeFit | None:
    """None where there are fewer than two rates, or no miss, or nothing else. ceiling: requests per second that the
    server can complete: events last the longer, and a probe shows the less, the closer its rate comes to it."""
    used, line = list(probes), None
    for _ in range(6):
        lines = _lines(used, target_misses, ceiling, 1.0)
        if not lines:
            return None
        line = max(lines, key=lambda one: one.weight).line
        near = [one for one in probes if _is_near(line, one.rate, target_misses)]
        if near == used or len({one.rate for one in near}) < 2:
            break
        used = near
    return _described(used, line, target_misses, ceiling) if line is not None else None


def _is_near(line: Line, rate: float, target: float) -> bool:
    """Not where hardly one is in time, nor so far off that the line need not be straight."""
    knee = line.middle * math.exp((math.log(target / (1 - target)) - line.level) / line.rise)
    return abs(rate / knee - 1) < APART and line.share(rate) <= min(0.6, target * AROUND)


def _room(rate: float, ceiling: float) -> float:
    return max(0.02, 1 - rate / ceiling)


def _described(probes: Sequence[Probe], line: Line, target: float, ceiling: float) -> KneeFit | None:
    effect, stretches = scatter(probes, line, ceiling)
    effect = max(effect, line.middle * expected_memory(line.middle, ceiling))
    middle = _room(line.middle, ceiling)
    worth = [(one.judged - one.good) * (_room(one.rate, ceiling) / middle) ** 2 for one in probes]
    events = sum(worth) / effect
    reach = WIDER * t_quantile(LEVEL, max(2.0, min(stretches - 2, events, 30.0))) / t_quantile(LEVEL, 1e6)
    lines = _lines(probes, target, ceiling, effect * reach * reach)
    if not lines:
        return None
    goal = math.log(target / (1 - target))
    crossings = [(one.weight, (goal - one.line.level) / one.line.rise, one.error / one.line.rise) for one in lines]
    low, rate, high = (
        line.middle * math.exp(_quantile(crossings, share)) for share in (0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2)
    )
    rise = sum(one.weight * one.line.rise for one in lines) / sum(one.weight for one in lines)
    rates = [one.rate for one in probes]
    return KneeFit(rate, low, high, rise, effect, events, drift(probes, effect), (min(rates), max(rates)))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A line, the standard error of its level, and how far the probes and what queues are like support it."""

    line: Line
    error: float
    weight: float


def _lines(probes: Sequence[Probe], target: float, ceiling: float, effect: float) -> list[_Weighed]:
    """One for each rise: few probes do not show it, so that it is weighed by what is known of queues (RISE) too."""
    n = sum(one.judged for one in probes)
    misses = sum(one.judged - one.good for one in probes)
    if not 0 < misses < n:
        return []
    middle = math.exp(sum(one.judged * math.log(one.rate) for one in probes) / n)
    worth = [(_room(one.rate, ceiling) / _room(middle, ceiling)) ** 2 for one in probes]
    points = [
        (math.log(one.rate / middle), (one.judged - one.good) * each, one.judged * each)
        for one, each in zip(probes, worth, strict=True)
    ]
    usual = -math.log(target) / _room(middle, ceiling)
    found = [(rise * usual, *_level(points, rise * usual)) for rise in RISES]
    weights = [
        (likely / effect) - _unusual(rise / usual) ** 2 / 2 + math.log(error) for rise, _, error, likely in found
    ]
    most = max(weights)
    return [
        _Weighed(Line(level, rise, middle), error * math.sqrt(effect), math.exp(max(-700.0, weight - most)))
        for (rise, level, error, _), weight in zip(found, weights, strict=True)
    ]


def _unusual(rise: float) -> float:
    """Standard deviations from what servers show."""
    off = math.log(rise / RISE)
    return off / SPREAD[off > 0]


def _level(points: Sequence[tuple[float, float, float]], rise: float) -> tuple[float, float, float]:
    """Of a line with this rise: its level, the level's standard error, and the logarithm of its likelihood."""
    misses = sum(missed for _, missed, _ in points)
    low, high = -800.0, 800.0
    for _ in range(60):
        level = (low + high) / 2
        low, high = (level, high) if sum(n * _share(level + rise * x) for x, _, n in points) < misses else (low, level)
    shares = [(_share(level + rise * x), missed, n) for x, missed, n in points]
    information = sum(n * share * (1 - share) for share, _, n in shares)
    tiny = 1e-300
    likely = sum(
        missed * math.log(max(share, tiny)) + (n - missed) * math.log(max(1 - share, tiny))
        for share, missed, n in shares
    )
    return level, 1 / math.sqrt(max(information, 1e-6)), likely


def _share(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, odds))))


def _quantile(crossings: Sequence[tuple[float, float, float]], share: float) -> float:
    """Of a mixture of normal distributions: weight, mean, standard deviation."""
    total = sum(weight for weight, _, _ in crossings)
    low = min(mean - 8 * error for _, mean, error in crossings)
    high = max(mean + 8 * error for _, mean, error in crossings)
    for _ in range(60):
        at = (low + high) / 2
        below = sum(w * math.erfc((mean - at) / error / math.sqrt(2)) / 2 for w, mean, error in crossings if w)
        low, high = (at, high) if below < share * total else (low, at)
    return (low + high) / 2


def scatter(probes: Sequence[Probe], line: Line, ceiling: float) -> tuple[float, int]:
    """The design effect, at least 1, and the number of stretches that showed it: the largest, over stretches of 1, 2,
    4 … windows and whole probes while at least 8 are left."""
    worst, stretches, length = 1.0, 10**6, 1
    while True:
        rows = [row for one in probes for row in _rows(one, line, length, ceiling)]
        if len(rows) < FEWEST_STRETCHES:
            return worst, stretches
        found = sum(rest * rest / spread for rest, spread in rows) / (len(rows) - 2)
        if found > worst:
            worst, stretches = found, len(rows)
        if all(length >= len(one.windows) for one in probes):
            return worst, stretches
        length *= 2


def _rows(probe: Probe, line: Line, length: int, ceiling: float) -> list[tuple[float, float]]:
    """Per stretch of about so many windows: misses above the fitted ones, and their variance were they independent."""
    share = min(max(line.share(probe.rate), 1e-6), 1 - 1e-6)
    parts = max(1, round(len(probe.windows) / length))
    edges = [round(i * len(probe.windows) / parts) for i in range(parts + 1)]
    cut = [probe.windows[a:b] for a, b in pairwise(edges)]
    counts = [(sum(w.judged for w in part), sum(w.judged - w.good for w in part)) for part in cut]
    more = (_room(line.middle, ceiling) / _room(probe.rate, ceiling)) ** 2
    return [(missed - n * share, n * share * (1 - share) * more) for n, missed in counts if n]


def drift(probes: Sequence[Probe], effect: float) -> float:
    """Standard errors by which the later halves missed more than the earlier."""
    more = spread = 0.0
    for probe in probes:
        middle = len(probe.windows) // 2
        (n1, m1), (n2, m2) = (_counts(part) for part in (probe.windows[:middle], probe.windows[middle:]))
        if n1 and n2:
            share = (m1 + m2) / (n1 + n2)
            more += m2 - m1 * n2 / n1
            spread += share * (1 - share) * (n2 + n2 * n2 / n1)
    return more / math.sqrt(spread * effect) if spread else 0.0


def _counts(windows: Sequence[RunWindow]) -> tuple[int, int]:
    return sum(w.judged for w in windows), sum(w.judged - w.good for w in windows)


def relaxation(probes: Sequence[Probe]) -> float:
    """Seconds after which the requests in flight show something new: their integrated autocorrelation time. Too short
    where the probes themselves are not many times as long."""
    width = probes[0].width
    series = [[w.in_flight for w in one.windows] for one in probes if len(one.windows) > 1]
    count = sum(map(len, series))
    if not count:
        return 0.0
    mean = sum(map(sum, series)) / count
    variance = sum((x - mean) ** 2 for one in series for x in one) / count
    if variance == 0:
        return 0.0
    total, lag, longest = 1.0, 0, max(map(len, series))
    while (lag := lag + 1) < longest // 2 and lag < 5 * total:
        pairs = [(a - mean) * (b - mean) for one in series for a, b in zip(one, one[lag:], strict=False)]
        total += 2 * sum(pairs) / len(pairs) / variance
    return width * max(1.0, total)


def expected_memory(rate: float, ceiling: float) -> float:
    """The least relaxation time, in seconds, that a queue has at a rate so close below its ceiling: half that of a
    single server of constant work. Probes that are not much longer cannot show their own."""
    room = _room(rate, ceiling)
    return 1 / (ceiling * room * room)
