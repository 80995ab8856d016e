"""What the blocks of long_run.py come to: growth, samples, tails."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from harness import Bar

from tailwatch.loadtest.t_test import t_quantile

WITHOUT, WITH = "without", "with"
ARMS = (WITHOUT, WITH)
LAST = 5  # blocks that are the end; at any one a scrape may be under way
PERIODS = 8  # of what is judged: their means are the points of a slope
GROWTH_MB = 1.0  # an hour, of a server of 100 MB
GROWTH_BLOCKS = 10.0  # thousand an hour: a megabyte, by the usual size of a block
MEMORY = {"malloc_used": "C memory in use", "python_blocks": "Python's blocks in use", "rss": "RSS", "pss": "PSS"}
COUNT = "of them"
MOST_OTHERWISE = 0.1  # of the planted stalls of a kind: less than half of it by its cause
CAUSES = {  # of stalls, by what was planted; a lock is waited for, and then the interpreter
    "sleep": (("sleep",), ("sleep",)),
    "io": (("pipe",), ("io",)),
    "locks": (("lock", "gil"), ("lock", "gil")),
    "callbacks": (("python", "regex"), ("callback", "cpu", "stopped")),
}
Counts = dict[str, Any]
Row = dict[str, Any]


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval; a block is the unit. Of one block there is none."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = t_quantile(0.95, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def middle(values: list[float]) -> tuple[float, float, float]:
    """The median and its interval of at least 95 %, by the sign test: whatever the blocks are in which the machine was
    another's."""
    ordered, n = sorted(values), len(values)
    below = 0
    while below < n // 2 and 2 * sum(math.comb(n, i) for i in range(below + 1)) <= 0.05 * 2**n:
        below += 1
    least = max(below - 1, 0)
    return statistics.median(ordered), ordered[least], ordered[n - 1 - least]


def stretches(values: list[float], of: Callable[[list[float]], float] = statistics.mean) -> list[float]:
    """Means (or what of gives) of PERIODS stretches: neighbouring blocks resemble each other, and these hardly do."""
    size = len(values) / PERIODS
    return [of(values[round(i * size) : round((i + 1) * size)]) for i in range(PERIODS)]


def slope(xs: list[float], ys: list[float]) -> tuple[float, float, float]:
    """By least squares, with its 95 % interval."""
    found = statistics.linear_regression(xs, ys)
    rest = sum((y - found.slope * x - found.intercept) ** 2 for x, y in zip(xs, ys, strict=True))
    mean = statistics.mean(xs)
    error = math.sqrt(rest / (len(xs) - 2) / sum((x - mean) ** 2 for x in xs))
    half = t_quantile(0.95, len(xs) - 2) * error
    return found.slope, found.slope - half, found.slope + half


def count(name: str, value: float, most: float | None = 0.0, unit: str = COUNT) -> Bar:
    """A number against the most that it may be; None: it is shown."""
    return Bar(name, value, value, value, most, False, unit)


# ---- growth ----


def growth_bars(blocks: list[Row]) -> list[Bar]:
    """Of the last two thirds. In use: what the allocators of Python and C have handed out. RSS and PSS also have what C
    keeps of what was given back, which is as much as the busiest moment so far has left."""
    late = blocks[len(blocks) // 3 :]
    bars = []
    if len(late) >= 2 * PERIODS:
        for name, where in (("malloc_used", "heap"), ("python_blocks", "heap"), ("rss", "sizes"), ("pss", "sizes")):
            bars += memory_bars(name, where, late)
    for name in ("descriptors", "threads", "segments", "segment_bytes"):
        values = [row["sizes"][WITH][name] - (pooled(row) if name == "threads" else 0) for row in late]
        more = min(values[-LAST:]) - statistics.median(values[: (len(values) + 1) // 2])
        bars.append(count(f"{name.replace('_', ' ')}: more in the end than in the second third", more))
    files = [row["sizes"][WITH]["file_bytes"] / 1e6 for row in late]
    bars.append(Bar("the group's files", files[-1], min(files), max(files), None, False, "MB"))
    return bars


def pooled(row: Row) -> int:
    """Threads of the loop's own pool, in which scrapes and pages are rendered: asyncio limits how many there are."""
    return sum(name.startswith("asyncio_") for name in row["counts"][WITH]["threads"])


def memory_bars(name: str, where: str, late: list[Row]) -> list[Bar]:
    """Of the difference between the servers, less what tailwatch_memory_bytes has: the history is that of an hour, and
    fills in it. Of what is in use, the least of each stretch: garbage goes, a leak stays. The bar is on what of the
    slope is not by chance: 0 where the interval contains it."""
    blocks = name == "python_blocks"
    scale, most = (1e3, GROWTH_BLOCKS) if blocks else (1e6, GROWTH_MB)
    unit = "thousand" if blocks else "MB"
    title = MEMORY[name]
    own = {
        arm: [(row["counts"][arm]["heap"] if where == "heap" else row["sizes"][arm])[name] / scale for row in late]
        for arm in ARMS
    }
    known = [0.0 if blocks else row["counts"][WITH]["tailwatch"]["memory_bytes"] / scale for row in late]
    ours, its = (stretches(own[arm], min if where == "heap" else statistics.mean) for arm in (WITH, WITHOUT))
    more = [a - b - kept for a, b, kept in zip(ours, its, stretches(known), strict=True)]
    _, low, high = found = slope(stretches([row["at_ns"] / 3600e9 for row in late]), more)
    bars = [
        Bar(f"{title}: grows by at least", max(0.0, low), low, high, most, False, f"{unit} an hour"),
        Bar(f"{title}: grows", *found, None, False, f"{unit} an hour"),
    ]
    for arm in ARMS:
        level = statistics.mean(own[arm])
        bars.append(Bar(f"{title}, {arm}", level, min(own[arm]), max(own[arm]), None, False, unit))
    return bars


# ---- samples ----


def sample_bars(blocks: list[Row], readers: Row, began: Counts) -> list[Bar]:
    """What was there to be counted, and what was counted."""
    end = blocks[-1]["counts"][WITH]
    watched, own = end["tailwatch"], end["own"]
    turns = [row["turns"][WITH] for row in blocks]
    return [
        *request_bars(watched, own, turns),
        *pause_bars(blocks, end, began),
        *slow_gap_bars(blocks[-1]),
        *trace_bars(blocks),
        *stall_bars(end),
        *reader_bars(watched, readers),
    ]


def request_bars(watched: Row, own: Counts, turns: list[Row]) -> list[Bar]:
    """By the clients, by the server's own handlers, and by tailwatch. A client that leaves at once may be gone before
    its request is read; the last token of one that leaves may be taken by the handler and never be sent."""
    sent, left, received = (sum(each[name] for each in turns) for name in ("sent", "left", "tokens"))
    ended = sum(watched["requests"].values())
    taken = own["stream_tokens"] + own["whole_tokens"]
    samples = watched["samples"]
    unsent = "at most one for each client that left"
    return [
        count("requests of the handlers, not counted or too often", abs(entered(own, turns) - watched["opened"])),
        count(f"requests of the clients, not counted: {unsent}", abs(sent - watched["opened"]), left),
        count("requests opened, neither ended nor in flight", abs(watched["opened"] - ended - watched["in_flight"])),
        count("tokens counted beyond those of the handlers", max(0, watched["tokens"] - taken)),
        count(f"tokens of the handlers, not counted: {unsent}", max(0, taken - watched["tokens"]), left),
        count("tokens that clients received, not counted", max(0, received - watched["tokens"] + own["whole_tokens"])),
        count(f"first tokens without a TTFT: {unsent}", abs(own["stream_begun"] - samples["ttft"]), left),
        count(
            f"gaps without an ITL sample: {unsent}",
            abs(own["stream_tokens"] - own["stream_begun"] - samples["itl"]),
            left,
        ),
        count("ITL samples without one of ITL without gc", abs(samples["itl"] - samples["itl_without_gc"])),
        count("engine steps, not counted or too often", abs(own["steps"] - watched["steps"])),
    ]


def entered(own: Counts, turns: list[Row]) -> int:
    """Requests that came to the app: those of the engine, and those that FastAPI refused."""
    return int(own["asked"] + sum(each["statuses"].get("422", 0) for each in turns))


def pause_bars(blocks: list[Row], end: Counts, began: Counts) -> list[Bar]:
    """gc.get_stats() also has the collections inside pauses of tailwatch's own, which count as these."""
    watched = end["tailwatch"]
    pauses = watched["pauses"]
    gone = abs(pauses["count"] - pauses["kept"] - pauses["overwritten"] - pauses["short"])
    rests = [abs(row["counts"][WITH]["tailwatch"]["pauses"]["rest_ns"]) / 1e3 for row in blocks]
    there = sum(end["collections"]) - sum(began["collections"])
    counted, before = (
        sum(n for cause, n in each["tailwatch"]["collections"].items() if cause != "gc_own") for each in (end, began)
    )
    asked = end["planted"]["times"]["collect"]
    return [
        count("pauses, neither in the ring nor overwritten nor short", gone),
        count("seconds of pauses in none of these", max(rests), 1.0, "us"),
        count("pauses that began and reported no end", watched["pauses"]["without_end"]),
        not_logged(blocks[-1], "pauses", lambda counts: counts["pauses"]["recorded"], "pause_log"),
        not_logged(blocks[-1], "short pauses", lambda counts: counts["pauses"]["short"]),
        count("collections counted beyond those of gc.get_stats()", max(0, counted - before - there)),
        count("collections inside pauses of tailwatch's own", there - counted + before, None),
        count("calls of gc.collect(), not counted as such", abs(asked - watched["policy"]["external"])),
    ]  # fmt: skip


def slow_gap_bars(row: Row) -> list[Bar]:
    """Those of the length that is logged. Where the ring was overwritten before this benchmark read it, what is logged
    may be more."""
    unread = row["counts"][WITH]["tailwatch"]["slow"]["unread"]
    return [
        not_logged(row, "slow gaps", lambda counts: counts["slow"]["long"], "slow_log", unread),
        count("slow gaps that this benchmark read too late", unread, None),
    ]


def not_logged(row: Row, what: str, recorded: Callable[[Row], int], reason: str | None = None, unread: int = 0) -> Bar:
    """Those that were recorded and are in no line later, nor counted as dropped; or in a line and not recorded."""
    counts, after = row["counts"][WITH]["tailwatch"], row["counts_after"]["tailwatch"]
    late = row["log"].get(what, 0) + (after["drops"][reason] if reason else 0)
    early = row["log_before"].get(what, 0) + (counts["drops"][reason] if reason else 0)
    return count(
        f"{what} recorded, neither logged nor counted as dropped",
        max(0, recorded(counts) - late, early - recorded(counts) - unread),
    )


def trace_bars(blocks: list[Row]) -> list[Bar]:
    """Of the blocks that were written as traces: the tokens of streams, the requests, the steps."""
    pairs = [(row, before) for before, row in pairwise(blocks) if "traced" in row]
    if not pairs:
        return []

    def more(row: Row, before: Row, name: str) -> int:
        return int(row["counts"][WITH]["own"][name] - before["counts"][WITH]["own"][name])

    def requests(row: Row, before: Row) -> int:
        return more(row, before, "asked") + int(row["turns"][WITH]["statuses"].get("422", 0))

    def rest(row: Row, before: Row) -> int:
        """Tokens, beyond one for each client that left."""
        missing = more(row, before, "stream_tokens") - row["traced"]["tokens"]
        return int(max(-missing, missing - row["turns"][WITH]["left"], 0))

    return [
        count(f"tokens of {len(pairs)} blocks, missing in their traces", max(rest(*each) for each in pairs)),
        count(
            "steps of these blocks, missing in their traces",
            max(abs(more(*each, "steps") - each[0]["traced"]["steps"]) for each in pairs),
        ),
        count(
            "requests of these blocks, missing in their traces",
            max(abs(requests(*each) - each[0]["traced"]["requests"]) for each in pairs),
        ),
        count("stalls that these traces have lost", max(row["traced"]["stalls_lost"] for row, _ in pairs)),
    ]


def stall_bars(end: Counts) -> list[Bar]:
    """Those of half the length of a planted one; others are recorded as well. A wait has its own cause however busy the
    machine is; of what runs, the machine may take the larger part, which is "cpu" then."""
    planted, stalls = end["planted"], end["tailwatch"]["stalls"]
    bars = []
    for name, (plants, causes) in CAUSES.items():
        times, seconds = (sum(planted[of][each] for each in plants) for of in ("times", "seconds"))
        _, recorded, long = (sum(stalls.get(cause, (0, 0.0, 0))[i] for cause in causes) for i in range(3))
        if times:
            share = recorded / seconds
            missing, most = max(0, times - long), MOST_OTHERWISE * times
            bars.append(count(f"planted stalls by {name}, of {times}, not recorded", missing, most))
            bars.append(Bar(f"stalls by {name}: seconds recorded / planted", share, share, share, None, False, ""))
    return bars


def reader_bars(watched: Row, readers: Row) -> list[Bar]:
    """Scrapes, pages, `tailwatch why`, OTLP; and what tailwatch counts of itself."""
    made, dropped, _ = watched["spans"]
    ended, exports = sum(watched["requests"].values()), watched["drops"]["export"]
    return [
        count("scrapes, pages and `tailwatch why` that failed", sum(readers["failed"].values())),
        count("counters that went back between two scrapes", sum(readers["backward"].values())),
        count("requests ended, without a span or a dropped one", abs(ended - made - dropped)),
        count("spans made, not received", abs(made - readers["spans"])),
        count("exports of metrics dropped: the next one covers their time", exports, None),
        count("names of places in the code without room: other", watched["host"]["names_lost"], None),
        count("errors inside tailwatch", sum(watched["errors"].values())),
        count("requests under the labels other", watched["label_overflow"]),
    ]


# ---- tails ----


def tail_bars(blocks: list[Row]) -> list[Bar]:
    """By the clients. A p99 is slower where the interval of the median difference lies above 0; then its upper end must
    be below the noise: the median difference of the control's own neighbouring blocks."""
    bars = []
    for name in ("ttft", "itl", "e2e"):
        for at in (50, 99):
            bars += tail_bar(blocks, f"{name}_p{at}_ms", f"{name.upper()} p{at}", judged=at == 99)
    return bars


def tail_bar(blocks: list[Row], key: str, title: str, *, judged: bool) -> list[Bar]:
    """One latency."""
    turns = {arm: [row["turns"][arm][key] for row in blocks] for arm in ARMS}
    differences = [ours - its for ours, its in zip(turns[WITH], turns[WITHOUT], strict=True)]
    own = turns[WITHOUT]
    found = middle(differences)
    bars = [
        Bar(f"{title}, without: median of the blocks", *middle(own), None, False, "ms"),
        Bar(f"{title}, with less without: median", *found, None, False, "ms"),
        Bar(f"{title}, with less without: mean", *interval(differences), None, False, "ms"),
    ]
    if judged:
        _, low, high = found
        noise = statistics.median(abs(later - before) for before, later in pairwise(own))
        slower = high if low > 0 else 0.0
        bars.append(Bar(f"{title}, slower with tailwatch by at most", slower, low, high, noise, False, "ms"))
    return bars
