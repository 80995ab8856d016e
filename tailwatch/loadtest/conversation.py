"""A conversation service's traffic, made up with the law of a recorded hour of one: no line of the recording is in it.

The law was fitted to the Azure LLM inference trace 2023 (conversations, 19 366 requests; CC-BY 4.0; Patel et al.,
"Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024):

- the logarithm of the rate wanders from minute to minute (standard deviation 0.22, correlation 0.8), 5.53/s on average;
- given the rate the gaps are as good as exponential (CV 1.03);
- prompts come in groups (a system prompt each, it seems), and the answer's length hangs on the group.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from tailwatch.loadtest.arrivals import checked_duration
from tailwatch.loadtest.interarrival import gamma
from tailwatch.loadtest.profile import Piece, Profile
from tailwatch.loadtest.traces import Trace

RATE = 5.53  # requests per second
WANDER, MEMORY = 0.22, 0.8  # of the logarithm of the rate: standard deviation, correlation from minute to minute
KNOT = 60.0  # seconds between two rates; straight lines between
EVENNESS = 1.03  # coefficient of variation of the gaps once the rate is taken out

# Share of the requests; prompt tokens at the levels of PROMPT_LEVELS, output tokens at those of OUTPUT_LEVELS.
PROMPT_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
OUTPUT_LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95, 0.99, 1.0)
GROUPS: tuple[tuple[float, tuple[int, ...], tuple[int, ...]], ...] = (
    (
        0.034,
        (2, 12, 26, 78, 123, 161, 169),
        (11, 12, 12, 12, 77, 125, 140, 157, 176, 205, 217, 231, 265),
    ),
    (
        0.1013,
        (171, 181, 189, 203, 212, 236, 299),
        (14, 14, 18, 63, 96, 131, 161, 165, 183, 217, 217, 293, 600),
    ),
    (
        0.259,
        (300, 375, 387, 398, 408, 423, 498),
        (7, 18, 51, 62, 81, 89, 93, 97, 107, 129, 145, 181, 400),
    ),
    (
        0.0249,
        (501, 618, 721, 824, 878, 890, 899),
        (10, 29, 40, 47, 75, 89, 95, 106, 122, 398, 414, 455, 649),
    ),
    (
        0.1593,
        (900, 960, 993, 1020, 1040, 1052, 1059),
        (27, 47, 89, 158, 390, 396, 402, 411, 425, 465, 536, 631, 992),
    ),
    (
        0.176,
        (1060, 1069, 1082, 1107, 1139, 1167, 1199),
        (28, 46, 104, 375, 393, 398, 407, 414, 429, 501, 566, 668, 1000),
    ),
    (
        0.0748,
        (1200, 1221, 1265, 1314, 1323, 1389, 1497),
        (26, 41, 52, 68, 124, 156, 178, 201, 376, 415, 440, 593, 954),
    ),
    (
        0.083,
        (1500, 1644, 1876, 2226, 2584, 2878, 3497),
        (15, 30, 43, 49, 65, 79, 88, 97, 114, 142, 159, 201, 594),
    ),
    (
        0.0805,
        (3513, 4074, 4077, 4083, 4091, 4109, 4191),
        (17, 26, 29, 34, 41, 48, 53, 60, 75, 119, 154, 308, 757),
    ),
    (
        0.0072,
        (4201, 4459, 4771, 5141, 5776, 6361, 14050),
        (30, 39, 47, 53, 68, 78, 92, 102, 118, 137, 153, 167, 190),
    ),
)
_ENDS = tuple(accumulate(share for share, _, _ in GROUPS))


def generate(seconds: float, *, seed: int = 0) -> Trace:
    """So many seconds of such traffic; the same arguments give the same.

    Raises:
        OptionError: seconds is no duration.
    """
    seconds = checked_duration(seconds)
    rng = random.Random(f"conversation {seed}")
    profile = _profile(seconds, random.Random(f"conversation rate {seed}"))
    times = map(profile.time_of, gamma(EVENNESS).places(random.Random(f"conversation times {seed}")))
    rows = ((round(at * 1e9), *_lengths(rng)) for at in _until(seconds, times))
    return Trace.of("conversation", "generated", rows)


def _until(seconds: float, times: Iterator[float]) -> Iterator[float]:
    for at in times:
        if at >= seconds:
            return
        yield at


def _profile(seconds: float, rng: random.Random) -> Profile:
    """The wandering rate, with the mean of a log-normal one taken out; its first minute is one like any other."""
    logs = [rng.gauss(0.0, WANDER)]
    step = WANDER * math.sqrt(1 - MEMORY * MEMORY)
    pieces = math.ceil(seconds / KNOT)
    for _ in range(pieces):
        logs.append(MEMORY * logs[-1] + rng.gauss(0.0, step))
    rates = [RATE * math.exp(log - WANDER * WANDER / 2) for log in logs]
    return Profile([Piece(KNOT, *ends) for ends in pairwise(rates)])


def _lengths(rng: random.Random) -> tuple[int, int]:
    """Prompt and output tokens of one request."""
    group = GROUPS[min(bisect_right(_ENDS, rng.random() * _ENDS[-1]), len(GROUPS) - 1)]
    return _at(PROMPT_LEVELS, group[1], rng.random()), _at(OUTPUT_LEVELS, group[2], rng.random())


def _at(levels: Sequence[float], values: Sequence[int], share: float) -> int:
    """The quantile function through these points."""
    i = min(bisect_right(levels, share), len(levels) - 1) - 1
    part = (share - levels[i]) / (levels[i + 1] - levels[i])
    return round(values[i] + part * (values[i + 1] - values[i]))
