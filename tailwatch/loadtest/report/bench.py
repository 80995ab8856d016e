"""The page of one run: what users waited, when, and what a tester that forgets its plan would have reported."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappush, heappushpop
from typing import TypeAlias

from tailwatch.loadtest.outcomes import REASONS
from tailwatch.loadtest.report import table, text
from tailwatch.loadtest.report.blocks import (
    Axis,
    Band,
    Block,
    Chart,
    Colour,
    Curve,
    Pair,
    ReferenceLine,
    ReportPage,
    Table,
    Tile,
    Tiles,
    View,
    Words,
)
from tailwatch.loadtest.report.quantiles import MOST_EXACT, Quantiles
from tailwatch.loadtest.requests import NEVER, Requests
from tailwatch.loadtest.results import Result
from tailwatch.platform import VERSION

MOST_POINTS = 12_000  # of a scatter: more are a black bar, and megabytes
COLUMNS = 600  # of time, each of which keeps its largest
LARGEST = 6  # of each column
MOST_BANDS = 2_000
GOOD, MISSED = "good", "missed"
_KINDS: tuple[tuple[str, Colour, bool], ...] = ((GOOD, "good", True), (MISSED, "gc2", False))
Point: TypeAlias = tuple[float, float, int]
"""When, how long (both in seconds), and the number of the request."""

_SHARE = Axis("percentile", "share of requests that waited no longer")
_DISTRIBUTIONS = (
    ("TTFT", "ttft", "ttft_naive"),
    ("E2E", "e2e", "e2e_naive"),
    ("largest gap", "largest_gap", ""),
    ("each gap", "itl", ""),
    ("TPOT", "tpot", ""),
)
_BOUND_OF = {"ttft": "ttft", "e2e": "e2e", "largest_gap": "itl", "itl": "itl", "tpot": "tpot"}
_TERMS = (
    (
        "From the planned start",
        "What a user waits who asks when planned, whatever this client was doing then.",
    ),
    (
        "From the send",
        "What a tester reports that forgets its plan. Smaller wherever it sent late: a cap, a pause, a closed loop.",
    ),
    ("TTFT", "To the first message with generated content: a role, a ping or a header is none."),
    (
        "Gap",
        "Between two messages with content, one sample of the whole gap. The largest of each request shows a freeze "
        "that TPOT, a mean, hides.",
    ),
    (
        "Within the SLO",
        "Good of all that were scheduled, less what is excluded (4xx but 429). A request this client gave up or never "
        "sent is a miss.",
    ),
)


def page(result: Result, runs: Sequence[Result] = ()) -> ReportPage:
    """Of one run; where it is one of several, a row of each stands beside it."""
    return ReportPage(
        title=f"tailwatch bench · {result.name or result.target}",
        lead=lead(result),
        blocks=(*_blocks(result), *_several(result, runs)),
        foot=_foot(result),
        status=table.VERDICTS.get(result.validity.verdict, result.validity.verdict),
        bad=not result.valid,
    )


def lead(result: Result) -> str:
    """The answer, in a sentence or two."""
    goodput, validity = result.goodput, result.validity
    if validity.verdict == "invalid":
        return "This run shows nothing about the server: " + (
            validity.reasons[0] if validity.reasons else "it is invalid"
        )
    ours, theirs = (Quantiles(result, name) for name in ("ttft", "ttft_naive"))
    corrected, naive = ours.p(99), theirs.p(99)
    parts = [f"Ctrl-C ended it after {text.duration(result.duration)}."] if result.interrupted else []
    if result.slo is not None and goodput.attainment is not None:
        parts.append(
            f"{text.rate(goodput.rate)} of the {text.rate(result.offered)} requests that were planned were good: "
            f"{text.share(goodput.attainment)} within `{goodput.slo}`."
        )
    else:
        parts.append(f"{text.rate(goodput.throughput)} of {text.rate(result.offered)} planned requests were answered.")
    if corrected and naive and table.hidden(corrected, naive):
        parts.append(
            f"TTFT p99 is {ours.text_at(99)}; a tester that times from the send would report {theirs.text_at(99)}."
        )
    elif corrected:
        parts.append(f"TTFT p99 is {ours.text_at(99)}.")
    return " ".join(parts)


def _blocks(result: Result) -> Iterable[Block]:
    yield _tiles(result)
    doubts = (*result.validity.reasons, *result.validity.warnings)
    if doubts:
        title = "Read with care" if result.valid else "Why this run is not to be believed"
        yield Words(tuple(doubts), title, warn=True)
    yield distribution(result)
    note = " ".join(table.how_to_read(result))
    rows = tuple(row for row in table.from_start(result) if row)
    yield Table("Both clocks", table.HEADS, rows, left=2, strong=2, note=note) if rows else Words((note,))
    if result.requests is not None and len(result.requests):
        yield scatter(result.requests, result)
    yield Pair(_rates(result), _flight(result))
    if rows := tuple(table.between(result)):
        heads = ("", *("max" if p == 100 else f"p{p:g}" for p in table.SPREAD), "samples")
        yield Table("Between tokens, and before", heads, rows, strong=3)
    yield _outcomes(result)
    if rows := tuple(table.examples(result)):
        yield Table("What came instead of answers", ("", "like"), rows, left=2)


def _several(result: Result, runs: Sequence[Result]) -> Iterable[Block]:
    if len(runs) > 1:
        note = "The page is of the run that is marked. Runs differ by their schedules' seeds, too."
        yield Table(
            "All runs", _RUN_HEADS, tuple(_run_row(i, run, run is result) for i, run in enumerate(runs, 1)), note
        )
        yield Table("All runs together", table.SEVERAL, tuple(table.several_rows(runs)), left=2, strong=2)
    yield Words(title="Words", terms=_TERMS)


_RUN_HEADS = ("run", "TTFT p99", "E2E p99", "largest gap", "good", "goodput", "throughput", "verdict")


def _run_row(number: int, run: Result, marked: bool) -> tuple[str, ...]:
    percentiles = (Quantiles(run, name).text_at(99) for name in ("ttft", "e2e"))
    good = run.goodput
    share = text.share(good.attainment) if run.slo is not None else text.NONE
    rates = (text.rate(good.rate) if run.slo is not None else text.NONE, text.rate(good.throughput))
    name = f"{number} (this page)" if marked else f"{number}"
    return (name, *percentiles, text.duration(run.largest_gap.max), share, *rates, run.validity.verdict)


def _tiles(result: Result) -> Tiles:
    goodput, lat = result.goodput, result.latencies
    percent, corrected, naive = _highest(result)
    asked = result.slo is not None
    first = (
        Tile("Good requests", text.rate(goodput.rate), f"of {text.rate(result.offered)} planned")
        if asked
        else Tile("Planned", text.rate(result.offered), f"{text.count(result.outcomes.scheduled)} requests")
    )
    spread = f", {text.share(goodput.low)} to {text.share(goodput.high)}" if goodput.low is not None else ""
    share = Tile(
        "Within the SLO", text.share(goodput.attainment) if asked else text.NONE,
        f"asked: {text.share(goodput.wanted)}{spread}" if asked else "no bounds were given: `--slo`",
        bad=asked and goodput.held is False,
    )  # fmt: skip
    largest = Quantiles(result, "largest_gap")
    return Tiles(
        (
            first,
            share,
            Tile(f"TTFT {percent}", corrected, f"{naive} from the send"),
            Tile(
                "Largest gap",
                text.duration(lat.largest_gap.max),
                f"{text.duration(largest.p(50))} in half the requests",
            ),
            Tile("Throughput", text.rate(goodput.throughput), f"{text.rate(goodput.tokens)} tokens"),
        )
    )


def _highest(result: Result) -> tuple[str, str, str]:
    """The highest usual percentile that the samples reach, and TTFT there by both clocks."""
    ours, theirs = Quantiles(result, "ttft"), Quantiles(result, "ttft_naive")
    percent = next((percent for percent in (99, 95, 90) if ours.p(percent) is not None), 100)
    return "max" if percent == 100 else f"p{percent}", ours.text_at(percent), theirs.text_at(percent)


def distribution(result: Result) -> Chart:
    """All latencies, one a tab, p90, p99 and p99.9 at equal distances."""
    views = [view for name, key, naive in _DISTRIBUTIONS if (view := _distribution(result, name, key, naive))]
    if not views:
        views = [View("TTFT", _SHARE, Axis("latency"), (), note="No answer had content.", alt="No sample.")]
    return Chart("Latency, the tail magnified", tuple(views), height=300)


def _distribution(result: Result, name: str, key: str, naive: str) -> View | None:
    ours = Quantiles(result, key)
    if not ours.count:
        return None
    both = [(ours, table.CORRECTED if naive else name, "line", "gc2")]
    if naive:
        both.append((Quantiles(result, naive), "from the send, as others report it", "dashed", "accent"))
    curves = []
    for quantiles, title, style, colour in both:
        xs, ys = quantiles.curve()
        curves.append(Curve(title, style, colour, xs, ys))  # type: ignore[arg-type]
    what = "gaps" if key == "itl" else "requests"
    alt = ", ".join(f"{p} {text.duration(ours.p(q))}" for p, q in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)))
    return View(
        name,
        Axis("percentile", f"share of {what} that waited no longer"),
        Axis("latency"),
        tuple(curves),
        _bound(result, key),
        note=f"{text.count(ours.count)} {what}; one in ten lies right of p90, one in a hundred right of p99.",
        alt=f"{name}: {alt}",
    )


def _bound(result: Result, key: str) -> tuple[ReferenceLine, ...]:
    name = _BOUND_OF.get(key, "")
    bound = getattr(result.slo, name) if result.slo is not None and name else None
    return (ReferenceLine("y", bound, f"SLO {text.duration(bound)}"),) if bound else ()


def scatter(requests: Requests, result: Result) -> Chart:
    """TTFT, the largest gap and the end of each request over time: a stall is a comb."""
    views = [
        _scatter("TTFT", "ttft", _since_planned(requests, requests.first), requests, result),
        _scatter("largest gap", "largest_gap", _gaps(requests), requests, result),
        _scatter("until it ended", "e2e", _since_planned(requests, requests.end), requests, result),
    ]
    empty = View("TTFT", Axis("clock"), Axis("latency"), (), note="No answer had content.", alt="No sample.")
    return Chart("When it was slow", tuple(view for view in views if view) or (empty,), height=280)


def _since_planned(requests: Requests, ends: Iterable[int]) -> Iterator[Point]:
    for i, (end, planned) in enumerate(zip(ends, requests.planned, strict=True)):
        if end != NEVER and end > planned:
            yield planned / 1e9, (end - planned) / 1e9, i


def _gaps(requests: Requests) -> Iterator[Point]:
    for i, (at, length) in enumerate(zip(requests.largest_gap_at, requests.largest_gap, strict=True)):
        if at != NEVER and length > 0:
            yield at / 1e9, length / 1e9, i


def _scatter(name: str, key: str, points: Iterable[Point], requests: Requests, result: Result) -> View | None:
    kept, count = thinned(points, max(result.elapsed, result.duration))
    if not kept:
        return None
    good = [REASONS[requests.reason[number]] == "good" for _, _, number in kept]
    curves = []
    for kind, colour, wanted in _KINDS:
        rows = [point for point, fine in zip(kept, good, strict=True) if fine is wanted]
        if rows:
            curves.append(Curve(kind, "points", colour, [at for at, _, _ in rows], [length for _, length, _ in rows]))
    worst = max(kept, key=lambda point: point[1])
    bands = tuple(Band(start / 1e9, (start + length) / 1e9) for start, length in result.client.pauses[:MOST_BANDS])
    note = f"Each point a request, at {'the begin of its gap' if key == 'largest_gap' else 'its planned start'}."
    if len(kept) < count:
        note += f" {text.count(len(kept))} of {text.count(count)} are drawn, among them the largest of each moment."
    if bands:
        note += " Grey: this client itself stood still."
    alt = f"{name} over time: {count} requests, the longest {text.duration(worst[1])} at {text.duration(worst[0])}"
    x = Axis("clock", high=result.duration)
    return View(name, x, Axis("latency"), tuple(curves), _bound(result, key), bands, note=note, alt=alt)


def thinned(points: Iterable[Point], seconds: float, most: int = MOST_POINTS) -> tuple[list[Point], int]:
    """At most so many points in order of time, and how many there were: of each of COLUMNS moments of `seconds` the
    longest, of the others a seeded sample. Holds no more than it gives, whatever the number of points."""
    rng, width = random.Random(0), seconds / COLUMNS or 1.0
    sample: list[Point] = []
    columns: dict[int, list[tuple[float, Point]]] = {}
    count = 0
    for count, point in enumerate(points, 1):
        if count <= most:
            sample.append(point)
        elif (place := rng.randrange(count)) < most:
            sample[place] = point
        largest = columns.setdefault(int(point[0] / width), [])
        (heappush if len(largest) < LARGEST else heappushpop)(largest, (point[1], point))
    if count <= most:
        return sorted(sample), count
    longest = sorted((entry for column in columns.values() for entry in column), reverse=True)[:most]
    kept = {point[2]: point for _, point in longest}
    for point in sample:
        if len(kept) >= most:
            break
        kept.setdefault(point[2], point)
    return sorted(kept.values()), count


def _rates(result: Result) -> Chart:
    """By the second; the plan beside what came back."""
    series = result.series
    seconds = list(range(len(series) + 1))
    plan: tuple[Curve, ...] = (
        () if result.closed else (Curve("planned", "dashed", "soft", seconds[:-1], series.scheduled),)
    )
    good = (Curve(GOOD, "area", "good", seconds, _held(series.good)),) if result.slo is not None else ()
    requests = View(
        "requests", Axis("clock"), Axis("number", "per second"),
        (*good, Curve("finished", "step", "ink", seconds, _held(series.finished)), *plan),
        note="Good and planned: of the requests planned for that second. Finished: what ended in it.",
        alt=f"Requests per second over {len(series)} s",
    )  # fmt: skip
    tokens = View(
        "tokens", Axis("clock"), Axis("number", "per second"),
        (Curve("tokens", "area", "accent", seconds, _held(series.tokens)),), alt="Output tokens per second",
    )  # fmt: skip
    return Chart("Goodput and throughput", (requests, tokens), height=240)


def _held(values: list[int]) -> list[float | None]:
    """A step lasts to the end of its second."""
    return [*values, *values[-1:]]


def _flight(result: Result) -> Chart:
    series = result.series
    seconds = list(range(len(series) + 1))
    cap = (ReferenceLine("y", result.client.cap, f"cap {result.client.cap}", "warn"),) if result.client.capped else ()
    flight = View(
        "in flight", Axis("clock"), Axis("number", "requests"),
        (Curve("in flight, at most", "area", "accent", seconds, _held(in_flight(result))),), cap,
        note="Rises while the server answers fewer than are asked.", alt="Requests in flight by the second",
    )  # fmt: skip
    worst = [max(value, 1) / 1e9 if value else None for value in series.largest_gap_ns]
    first = [max(value, 1) / 1e9 if value else None for value in series.ttft_max_ns]
    at = [second + 0.5 for second in range(len(series))]
    longest = View(
        "the longest of each second", Axis("clock"), Axis("latency"),
        (Curve("TTFT", "points", "gc2", at, first), Curve("gap", "points", "accent", at, worst)),
        alt="The longest TTFT and gap of each second",
    )  # fmt: skip
    return Chart("Load on the server", (flight, longest), height=240)


def in_flight(result: Result) -> list[int]:
    """The most of each second of the run: of all sends and ends where they are known and not too many, else of the
    sends."""
    if result.requests is None or len(result.requests) > MOST_EXACT:
        return result.series.in_flight
    spans = zip(result.requests.sent, result.requests.end, strict=True)
    edges = sorted(edge for sent, end in spans if NEVER not in (sent, end) for edge in ((sent, 1), (end, -1)))
    found = [0] * len(result.series)
    second = now = 0
    for at, step in edges:
        while second < min(at // 1_000_000_000, len(found) - 1):  # what was there at the begin of a second counts in it
            second += 1
            found[second] = now
        now += step
        if found:
            found[second] = max(found[second], now)
    return found


def _outcomes(result: Result) -> Table:
    found, total = result.outcomes, max(1, result.outcomes.scheduled)
    rows = [
        (name.replace("_", " "), text.count(n), text.share(n / total), _KIND.get(name, "miss"))
        for name, n in found.by_reason.items()
        if n
    ]
    rows += [
        (f"fault: {name.replace('_', ' ')}", text.count(n), text.share(n / total), "")
        for name, n in found.faults.items()
    ]
    return Table(
        "Outcomes",
        ("", "requests", "share", "counts as"),
        tuple(rows),
        note=f"This client: {'; '.join(table.client(result))}.",
    )


_KIND = {"good": "good", "4xx": "excluded", "3xx": "excluded"}


def _foot(result: Result) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.started)) if result.started else ""
    digest = result.schedule.get("digest", "")
    parts = [*table.heading(result)[:1], f"schedule {digest}" if digest else "", when, f"tailwatch {VERSION}"]
    return " · ".join(part for part in parts if part)
