"""The table in the form of the measurement this project began with, what differs from what, and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from textwrap import wrap

from tailwatch.demo.experiment.arms import ARMS, BY_KEY, QUESTIONS, ExperimentArm, Question
from tailwatch.demo.experiment.runs import Experiment
from tailwatch.demo.experiment.summary import (
    ALPHA,
    COMPARED,
    MARGIN,
    METRIC,
    METRICS,
    SERVER_COLUMNS,
    Claim,
    Claims,
    claims,
    mean,
    runs_of,
    server_view,
    unresolved,
    values,
)
from tailwatch.loadtest.censored_percentiles import Ranks
from tailwatch.loadtest.report import text
from tailwatch.loadtest.report.bench import Point, thinned
from tailwatch.loadtest.report.blocks import (
    Axis,
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
from tailwatch.loadtest.report.quantiles import tail_curve
from tailwatch.loadtest.requests import NEVER, Requests, samples
from tailwatch.platform import VERSION

SIGN = "Minus: less after than before. Of latencies less is better, of offline tokens/s more."
COLOURS: dict[str, Colour] = {
    "freeze+sse": "good", "freeze": "accent", "neither": "gc2", "small-batch": "warn", "idle": "policy",
}  # fmt: skip
FAMILY = len(QUESTIONS) * len(COMPARED)
P = (
    "95 % interval: of Student's t over pairs of valid runs, the row's alone. p: of t, counted that "
    f"{FAMILY} rows are looked at (Holm); a difference is shown where p is at most {ALPHA}. "
    "Would have shown: the smallest true effect that is shown 4 times in 5."
)
DIFFERENCE_HEADS = ("what it changes", "in", "by", "95 % interval", "p", "would have shown", "pairs")
WIDTH = 100


def show(found: Experiment) -> str:
    """All of it, for a terminal."""
    claimed = claims(found)
    parts = [
        setting(found),
        text.lines(HEADS, client_rows(found)),
        ["Milliseconds, the mean (geometric) of each server's valid runs, from the planned start of each request."],
        text.lines(SERVER_HEADS, server_rows(found)),
        ["The same requests as tailwatch inside the server saw them, from their arrival at its kernel."],
        text.lines(DIFFERENCE_HEADS, difference_rows(claimed), left=2),
        [SIGN, *wrap(P, WIDTH)],
        [line for sentence in sentences(found, claimed) for line in wrap(sentence, WIDTH, subsequent_indent="  ")],
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
        f"{found.size.blocks} blocks of {len(ARMS)} servers, each run in a fresh server process; "
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
        rows.append((arm.row, *cells, text.share(_attainment(found, arm))))
    return rows


def _attainment(found: Experiment, arm: ExperimentArm) -> float | None:
    runs = runs_of(found, arm.key)
    counted = sum(run.result.goodput.counted for run in runs)
    return sum(run.result.goodput.good for run in runs) / counted if counted else None


def server_rows(found: Experiment) -> list[tuple[str, ...]]:
    """A row a server, SERVER_HEADS."""
    rows = []
    for arm in ARMS:
        view = server_view(found, arm.key)
        rows.append((arm.row, *map(_ms, view["columns"]), _ms(view["longest"]), f"{view['full']:.1f}"))
    return rows


def difference_rows(claimed: Claims) -> list[tuple[str, ...]]:
    """Question, number, change, interval, p, the smallest effect that would have been shown, pairs."""
    rows: list[tuple[str, ...]] = []
    before = ""
    for (name, key), claim in claimed.items():
        made = claim.difference
        p = text.NONE if claim.p is None else f"{claim.p:.2g}"
        cells = (_percent(made.estimate), _interval(claim), p, _percent(made.detectable), str(claim.pairs))
        rows.append(("" if name == before else name, METRIC[key].name, *cells))
        before = name
    return rows


def sentences(found: Experiment, claimed: Claims) -> Iterator[str]:
    """What it comes to; what was not shown is marked as not shown."""
    for reason in unresolved(found):
        yield f"unresolved: {reason}"
    for question in QUESTIONS:
        yield sentence(claimed, question)
    parts = [
        f"{question.name} {_kept(claim)}"
        for question in QUESTIONS[:2]
        if (claim := claimed.get((question.name, "offline"))) is not None
    ]
    if parts:
        yield f"Offline throughput: {'; '.join(parts)}."


def sentence(claimed: Claims, question: Question) -> str:
    """One answer: the tail, the longest gap, and the body beside them."""
    before, after = BY_KEY[question.before], BY_KEY[question.after]
    claim = claimed.get((question.name, "e2e_p99"))
    if claim is None:
        return f"{question.name}: not measured."
    name = f"{question.name[0].upper()}{question.name[1:]} ({after.name} against {before.name})"
    if not claim.resolved:
        return f"{name}: unresolved: {claim.why_not}."
    tail = f"E2E p99 from {_ms(claim.difference.a)} to {_ms(claim.difference.b)} ms: {_verdict(claim)}"
    beside = (("longest gap", "itl_max"), ("E2E p90", "e2e_p90"))
    more = [
        f"{what} {_verdict(claimed[question.name, key])}" for what, key in beside if (question.name, key) in claimed
    ]
    return f"{name}: {'; '.join([tail, ', '.join(more)])}."


def _verdict(claim: Claim) -> str:
    if not claim.resolved:
        return "unresolved"
    if claim.shown:
        return f"{_percent(claim.difference.estimate)} ({_interval(claim)})"
    return f"no difference shown ({_interval(claim)})"


def _kept(claim: Claim) -> str:
    """Whether a number is the same, which "no difference shown" does not mean."""
    if claim.unchanged:
        return f"leaves it unchanged within {MARGIN:.0%} ({_interval(claim)})"
    if claim.shown:
        return f"changes it by {_verdict(claim)}"
    if not claim.resolved:
        return f"unresolved ({claim.why_not})"
    return f"unresolved: {_interval(claim)} is neither within {MARGIN:.0%} nor a difference"


def _interval(claim: Claim) -> str:
    made = claim.difference
    return text.NONE if made.low is None else f"{_percent(made.low)} to {_percent(made.high)}"


def _percent(share: float | None) -> str:
    if share is None or not math.isfinite(share):
        return text.NONE
    return f"{share:+.1%}" if share < 1 else f"{text.three(1 + share)}x"


def _ms(seconds: float | None) -> str:
    return text.NONE if seconds is None else text.three(seconds * 1e3)


# ---- the page ----


def page(found: Experiment) -> ReportPage:
    """The experiment at a glance."""
    doubts, claimed = unresolved(found), claims(found)
    return ReportPage(
        title="tailwatch demo --experiment",
        lead=f"Unresolved: {doubts[0]}." if doubts else sentence(claimed, QUESTIONS[0]),
        blocks=tuple(_blocks(found, claimed, doubts)),
        foot=f"{' '.join(setting(found))} · tailwatch {VERSION}",
        status="unresolved" if doubts else "resolved",
        bad=bool(doubts),
    )


def _blocks(found: Experiment, claimed: Claims, doubts: list[str]) -> Iterator[Block]:
    yield _tiles(claimed)
    if doubts:
        yield Words(tuple(doubts), "Unresolved", warn=True)
    yield _spread(found)
    yield Table(
        "As the measurement that this began with", HEADS, tuple(client_rows(found)), strong=6,
        note="Milliseconds from the planned start; the geometric mean of each server's valid runs.",
    )  # fmt: skip
    yield Pair(_comb(found), _distribution(found))
    yield _forest(claimed)
    yield Table(
        "Every difference", DIFFERENCE_HEADS, tuple(difference_rows(claimed)), left=2, strong=2, note=f"{SIGN} {P}"
    )
    yield Table(
        "The same requests, seen by the server", SERVER_HEADS, tuple(server_rows(found)), strong=6,
        note="tailwatch inside the server: from a request's arrival at its kernel. Milliseconds.",
    )  # fmt: skip
    yield Words(tuple(sentences(found, claimed))[len(doubts) :], "In words")


def _tiles(claimed: Claims) -> Tiles:
    tiles = []
    for key, name in (
        ("e2e_p99", "E2E p99"),
        ("itl_max", "Longest gap"),
        ("ttft_p99", "TTFT p99"),
        ("offline", "Offline tokens/s"),
    ):
        claim = claimed.get((QUESTIONS[0].name, key))
        if claim is not None:
            made = claim.difference
            one, other = (text.three(v) if key == "offline" else f"{_ms(v)} ms" for v in (made.a, made.b))
            interval = _interval(claim) if claim.resolved else claim.why_not
            tiles.append(Tile(f"{name}, frozen", _percent(made.estimate), f"from {one} to {other}; {interval}"))
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
        alt = ", ".join(
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
                alt=f"{metric.name}, ms: {alt}",
            )
        )
    return Chart("At a glance", tuple(views), height=250)


def _forest(claimed: Claims) -> Chart:
    views = []
    names = tuple(question.name for question in QUESTIONS)
    for key in COMPARED:
        made = [(i, c.difference) for i, name in enumerate(names) if (c := claimed.get((name, key))) is not None]
        bounds = [(each.estimate, each.low, each.high) for _, each in made]
        logs = [[None if bound is None else math.log1p(bound) for bound in row] for row in bounds]
        curve = Curve(
            METRIC[key].name, "interval", "accent", [row[0] or 0.0 for row in logs], [float(i) for i, _ in made],
            [row[1] for row in logs], [row[2] for row in logs],
        )  # fmt: skip
        alt = ", ".join(f"{names[i]} {_percent(each.estimate)}" for i, each in made)
        views.append(
            View(
                METRIC[key].name,
                Axis("change", "change"),
                Axis("category", names=names),
                (curve,),
                (ReferenceLine("x", 0.0, "no change", "soft"),),
                note=f"95 % interval of paired runs. {SIGN}",
                alt=alt,
            )
        )
    return Chart("What it changes", tuple(views), height=230)


def _comb(found: Experiment) -> Chart:
    """The same schedule, frozen or not: the longest gap of each request when it happened."""
    views = []
    for name, moments, lengths in (("longest gap", "largest_gap_at", "largest_gap"), ("TTFT", "planned", "first")):
        curves = []
        for key in ("neither", "idle", "freeze"):
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
                alt=f"{name} over time",
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
            sample = Ranks([ns for rows in every if rows is not None for ns in samples(rows, key)])
            if sample.count:
                curves.append(Curve(arm.name, "line", COLOURS[arm.key], *tail_curve(sample)))
        views.append(
            View(
                name,
                Axis("percentile", "share of requests"),
                Axis("latency"),
                tuple(curves),
                note="All runs of a server together.",
                alt=f"{name} of each server",
            )
        )
    return Chart("All requests, the tail magnified", tuple(views), height=260)
