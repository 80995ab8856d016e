"""The table in the form of the measurement this project began with, what differs from what, and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from textwrap import wrap

from tailwatch.demo.full.arms import ARMS, BY_KEY, QUESTIONS, Arm, Question
from tailwatch.demo.full.experiment import Experiment
from tailwatch.demo.full.summary import (
    COMPARED,
    METRIC,
    METRICS,
    SERVER_COLUMNS,
    difference,
    mean,
    runs_of,
    server_view,
    shown,
    unresolved,
    values,
)
from tailwatch.load.report import text
from tailwatch.load.report.bench import Point, thinned
from tailwatch.load.report.blocks import (
    Axis,
    Block,
    Chart,
    Colour,
    Curve,
    Mark,
    Page,
    Pair,
    Table,
    Tile,
    Tiles,
    View,
    Words,
    nines,
)
from tailwatch.load.results import NEVER, Requests, samples
from tailwatch.load.statistics import Difference
from tailwatch.version import VERSION

SIGN = "Minus: less after than before. Of latencies less is better, of offline tokens/s more."
COLOURS: dict[str, Colour] = {
    "freeze+sse": "good", "freeze": "accent", "neither": "gc2", "small-batch": "warn", "out-of-band": "policy",
}  # fmt: skip
P = "p: all exchanges of the labels inside the blocks. Would have shown: the smallest effect seen 4 times in 5."
DIFFERENCE_HEADS = ("what it changes", "in", "by", "95 % interval", "p", "would have shown")
POINTS, WIDTH = 160, 100


def show(found: Experiment) -> str:
    """All of it, for a terminal."""
    parts = [
        setting(found),
        text.lines(HEADS, client_rows(found)),
        ["Milliseconds, the mean (geometric) of each server's runs, from the planned start of each request."],
        text.lines(SERVER_HEADS, server_rows(found)),
        ["The same requests as tailwatch inside the server saw them, from their arrival at its kernel."],
        text.lines(DIFFERENCE_HEADS, difference_rows(found), left=2),
        [SIGN, P],
        [line for sentence in sentences(found) for line in wrap(sentence, WIDTH, subsequent_indent="  ")],
    ]
    return "\n".join("\n".join(part) + "\n" for part in parts if part).rstrip() + "\n"


HEADS = ("server", "TTFT p90", "p99", "TPOT p90", "p99", "E2E p90", "p99", "ITL max", "offline tok/s", "good")
SERVER_HEADS = ("seen by the server", *(name for name, _, _ in SERVER_COLUMNS), "longest pause", "full coll.")


def setting(found: Experiment) -> list[str]:
    """What was done, in three lines."""
    if not found.runs:
        return ["nothing was measured"]
    first = found.runs[0].result
    return [
        f"{found.size.blocks} blocks of {len(ARMS)} servers, each run in fresh processes; "
        f"{found.objects:,} tracked objects.",
        f"{first.schedule.get('target', '')}: {found.rate:.1f}/s over its law "
        f"({found.rate / found.capacity:.0%} of the {found.capacity:.1f}/s this server can do), "
        f"{found.seconds:.0f} s a run.",
        f"SLO {found.slo}",
    ]


def client_rows(found: Experiment) -> list[tuple[str, ...]]:
    """A row a server, HEADS."""
    rows = []
    for arm in ARMS:
        means = [mean(values(found, arm.key, metric)) for metric in METRICS]
        cells = [_ms(value) for value in means[:-1]] + [text.NONE if means[-1] is None else text.three(means[-1])]
        rows.append((arm.name, *cells, text.share(_attainment(found, arm))))
    return rows


def _attainment(found: Experiment, arm: Arm) -> float | None:
    runs = runs_of(found, arm.key)
    counted = sum(run.result.goodput.counted for run in runs)
    return sum(run.result.goodput.good for run in runs) / counted if counted else None


def server_rows(found: Experiment) -> list[tuple[str, ...]]:
    """A row a server, SERVER_HEADS."""
    rows = []
    for arm in ARMS:
        view = server_view(found, arm.key)
        rows.append((arm.name, *map(_ms, view["columns"]), _ms(view["longest"]), f"{view['full']:.1f}"))
    return rows


def difference_rows(found: Experiment) -> list[tuple[str, ...]]:
    """Question, number, change, interval, exact p, the smallest effect that would have been seen."""
    rows: list[tuple[str, ...]] = []
    for question in QUESTIONS:
        name = question.name
        for key in COMPARED:
            if (told := difference(found, question, METRIC[key])) is None:
                continue
            p = "" if told.exact is None else f"{told.exact:.2g}"
            rows.append(
                (name, METRIC[key].name, _percent(told.estimate), _interval(told), p, _percent(told.detectable))
            )
            name = ""
    return rows


def sentences(found: Experiment) -> Iterator[str]:
    """What it comes to; what was not shown is said to be not shown."""
    for reason in unresolved(found):
        yield f"unresolved: {reason}"
    for question in QUESTIONS:
        yield sentence(found, question)
    parts = []
    for question in QUESTIONS[:2]:
        told = difference(found, question, METRIC["offline"])
        if told is not None:
            parts.append(f"{question.name} {_verdict(told)}")
    if parts:
        yield f"Offline throughput: {'; '.join(parts)}."


def sentence(found: Experiment, question: Question) -> str:
    """One answer: the tail, the longest gap, and the body beside them."""
    before, after = BY_KEY[question.before], BY_KEY[question.after]
    told = difference(found, question, METRIC["e2e_p99"])
    if told is None:
        return f"{question.name}: not measured."
    tail = f"E2E p99 from {_ms(told.a)} to {_ms(told.b)} ms: {_verdict(told)}"
    gap, body = (difference(found, question, METRIC[key]) for key in ("itl_max", "e2e_p90"))
    more = [f"longest gap {_verdict(gap)}"] if gap is not None else []
    more += [f"E2E p90 {_verdict(body)}"] if body is not None else []
    more += ["without an interval: too few blocks"] if told.low is None else []
    name = f"{question.name[0].upper()}{question.name[1:]}"
    return f"{name} ({after.name} against {before.name}): {tail}; {', '.join(more)}."


def _verdict(told: Difference) -> str:
    if told.low is None:
        return _percent(told.estimate)
    if shown(told):
        return f"{_percent(told.estimate)} ({_interval(told)})"
    return f"no difference shown ({_interval(told)})"


def _interval(told: Difference) -> str:
    return text.NONE if told.low is None else f"{_percent(told.low)} to {_percent(told.high)}"


def _percent(share: float | None) -> str:
    if share is None or not math.isfinite(share):
        return text.NONE
    return f"{share:+.1%}" if share < 1 else f"{text.three(1 + share)}x"


def _ms(seconds: float | None) -> str:
    return text.NONE if seconds is None else text.three(seconds * 1e3)


# ---- the page ----


def page(found: Experiment) -> Page:
    """The experiment at a glance."""
    doubts = unresolved(found)
    return Page(
        title="tailwatch demo --full",
        lead=f"Unresolved: {doubts[0]}." if doubts else sentence(found, QUESTIONS[0]),
        blocks=tuple(_blocks(found, doubts)),
        foot=f"{' '.join(setting(found))} · tailwatch {VERSION}",
        status="unresolved" if doubts else "resolved",
        bad=bool(doubts),
    )


def _blocks(found: Experiment, doubts: list[str]) -> Iterator[Block]:
    yield _tiles(found)
    if doubts:
        yield Words(tuple(doubts), "Unresolved", warn=True)
    yield _spread(found)
    yield Table(
        "As the measurement that this began with", HEADS, tuple(client_rows(found)), strong=6,
        note="Milliseconds from the planned start; the geometric mean of each server's runs.",
    )  # fmt: skip
    yield Pair(_comb(found), _distribution(found))
    yield _forest(found)
    yield Table("Every difference", DIFFERENCE_HEADS, tuple(difference_rows(found)), left=2, strong=2, note=SIGN)
    yield Table(
        "The same requests, seen by the server", SERVER_HEADS, tuple(server_rows(found)), strong=6,
        note="tailwatch inside the server: from a request's arrival at its kernel. Milliseconds.",
    )  # fmt: skip
    yield Words(tuple(sentences(found))[len(doubts) :], "In words")


def _tiles(found: Experiment) -> Tiles:
    tiles = []
    for key, name in (
        ("e2e_p99", "E2E p99"),
        ("itl_max", "Longest gap"),
        ("ttft_p99", "TTFT p99"),
        ("offline", "Offline tokens/s"),
    ):
        told = difference(found, QUESTIONS[0], METRIC[key])
        if told is not None:
            one, other = (text.three(v) if key == "offline" else f"{_ms(v)} ms" for v in (told.a, told.b))
            tiles.append(Tile(f"{name}, frozen", _percent(told.estimate), f"from {one} to {other}; {_interval(told)}"))
    return Tiles(tuple(tiles))


_NAMES = tuple(arm.name for arm in ARMS)


def _spread(found: Experiment) -> Chart:
    """Each run a point, each server a line of them."""
    views = []
    for key in ("e2e_p99", "itl_max", "ttft_p99", "tpot_p99", "e2e_p90"):
        metric = METRIC[key]
        by_arm = [values(found, arm.key, metric) for arm in ARMS]
        every = [(value, float(at)) for at, numbers in enumerate(by_arm) for value in numbers]
        curves = [
            Curve(arm.name, "interval", COLOURS[arm.key], [middle], [float(at)], [min(numbers)], [max(numbers)])
            for at, (arm, numbers) in enumerate(zip(ARMS, by_arm, strict=True))
            if (middle := mean(numbers))
        ]
        curves.append(Curve("each run", "points", "ink", [value for value, _ in every], [at for _, at in every]))
        says = ", ".join(
            f"{name} {cell}"
            for name, cell in zip(_NAMES, [_ms(mean(values(found, a.key, metric))) for a in ARMS], strict=True)
        )
        views.append(
            View(
                metric.name,
                Axis("latency"),
                Axis("category", names=_NAMES),
                tuple(curves),
                note="Each point a run; the large one their mean, its line from the best run to the worst.",
                says=f"{metric.name}, ms: {says}",
            )
        )
    return Chart("At a glance", tuple(views), height=250)


def _forest(found: Experiment) -> Chart:
    views = []
    names = tuple(question.name for question in QUESTIONS)
    for key in COMPARED:
        told = [difference(found, question, METRIC[key]) for question in QUESTIONS]
        at = [i for i, each in enumerate(told) if each is not None]
        logs = [[None if v is None else math.log1p(v) for v in _bounds(told[i])] for i in at]
        curve = Curve(
            METRIC[key].name, "interval", "accent", [row[0] or 0.0 for row in logs], [float(i) for i in at],
            [row[1] for row in logs], [row[2] for row in logs],
        )  # fmt: skip
        says = ", ".join(f"{names[i]} {_percent(each.estimate)}" for i, each in enumerate(told) if each is not None)
        views.append(
            View(
                METRIC[key].name,
                Axis("change", "change"),
                Axis("category", names=names),
                (curve,),
                (Mark("x", 0.0, "no change", "soft"),),
                note=f"95 % interval of paired runs. {SIGN}",
                says=says,
            )
        )
    return Chart("What it changes", tuple(views), height=230)


def _bounds(told: Difference | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if told is None else (told.estimate, told.low, told.high)


def _comb(found: Experiment) -> Chart:
    """The same schedule, frozen or not: the longest gap of each request when it happened."""
    views = []
    for name, moments, lengths in (("longest gap", "largest_gap_at", "largest_gap"), ("TTFT", "planned", "first")):
        curves = []
        for key in ("neither", "out-of-band", "freeze"):
            runs = runs_of(found, key)
            rows = runs[0].result.requests if runs else None
            if rows is not None:
                points, _ = thinned(_points(rows, moments, lengths), found.seconds, 3_000)
                curves.append(
                    Curve(BY_KEY[key].name, "points", COLOURS[key], [p[0] for p in points], [p[1] for p in points])
                )
        views.append(
            View(
                name,
                Axis("clock"),
                Axis("latency"),
                tuple(curves),
                note="The first block, each point a request. Full collections stand in rows.",
                says=f"{name} over time",
            )
        )
    return Chart("The comb", tuple(views), height=260)


def _points(rows: Requests, moments: str, lengths: str) -> list[Point]:
    since = rows.planned if lengths == "first" else None
    found = []
    for i, (at, ns) in enumerate(zip(getattr(rows, moments), getattr(rows, lengths), strict=True)):
        length = ns - since[i] if since is not None and ns != NEVER else ns
        if length > 0 and at != NEVER:
            found.append((at / 1e9, length / 1e9, i))
    return found


def _distribution(found: Experiment) -> Chart:
    """All runs of a server together, the tail magnified."""
    views = []
    for name, key in (("E2E", "e2e"), ("TTFT", "ttft"), ("longest gap", "largest_gap"), ("TPOT", "tpot")):
        curves = []
        for arm in ARMS:
            every = (run.result.requests for run in runs_of(found, arm.key))
            numbers = sorted(ns for rows in every if rows is not None for ns in samples(rows, key))
            if numbers:
                curves.append(_curve(arm, numbers))
        views.append(
            View(
                name,
                Axis("percentile", "share of requests"),
                Axis("latency"),
                tuple(curves),
                note="All runs of a server together.",
                says=f"{name} of each server",
            )
        )
    return Chart("All requests, the tail magnified", tuple(views), height=260)


def _curve(arm: Arm, ordered: list[int]) -> Curve:
    last = max(math.log10(len(ordered)), nines(0.5))
    xs = [last * i / (POINTS - 1) for i in range(POINTS)]
    ranks = [max(1, math.ceil((1 - 10**-x) * len(ordered))) for x in xs[:-1]] + [len(ordered)]
    return Curve(arm.name, "line", COLOURS[arm.key], xs, [ordered[rank - 1] / 1e9 for rank in ranks])
