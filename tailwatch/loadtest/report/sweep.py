"""The sweep of a search: where goodput leaves throughput, and the knee with its interval or why there is none."""

from __future__ import annotations

from tailwatch.loadtest.report import text
from tailwatch.loadtest.report.blocks import (
    Axis,
    Band,
    Block,
    Chart,
    Colour,
    Curve,
    ReferenceLine,
    ReportPage,
    Table,
    Tile,
    Tiles,
    View,
    Words,
)
from tailwatch.loadtest.saturation_point import FAILS, HOLDS, INVALID, UNDECIDED, Knee, SweepRow
from tailwatch.platform import VERSION

HEADS = ("offered", "verdict", "share", "95 % interval", "goodput", "throughput", "requests", "probes")
LEFT = 2
EACH: tuple[Colour, ...] = ("gc2", "accent", "policy", "gc1")  # the bounds of an SLO, at most four
_WORDS = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "undecided", INVALID: "not measured"}


def show(knee: Knee) -> str:
    """The table by rate, and under it what was found."""
    bounds = bound_names(knee)
    heads = (*HEADS, *(f"{name} kept" for name in bounds))
    lines = text.lines(heads, [cells(row, bounds) for row in knee.rows()], left=LEFT)
    return "\n".join((*lines, "", *sentences(knee))) + "\n"


def bound_names(knee: Knee) -> tuple[str, ...]:
    """Bounds of the SLO that were counted one by one; none where there is only one, whose share is the attainment."""
    names = {name: None for row in knee.rows() for name in row.shares}
    return tuple(names) if len(names) > 1 else ()


def cells(row: SweepRow, bounds: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Of one rate: HEADS, then the share that kept each bound."""
    if row.verdict == INVALID:
        shown = (_offered(row), _WORDS[INVALID], *[text.NONE] * 5, _probes(row))
        return (*shown, *[text.NONE] * len(bounds))
    return (
        _offered(row),
        _WORDS[row.verdict],
        text.share(row.share),
        f"{text.share(row.low)} to {text.share(row.high)}",
        text.rate(row.goodput),
        text.rate(row.throughput),
        text.count(row.scheduled),
        _probes(row),
        *(text.share(row.shares.get(name)) for name in bounds),
    )


def _offered(row: SweepRow) -> str:
    return f"{row.rate:.4g}/s"


def _probes(row: SweepRow) -> str:
    return f"{row.probes}"


def sentences(knee: Knee) -> list[str]:
    """What was found, what gave way first, and what a server is worth by it."""
    found = [str(knee)]
    if knee.rate is not None:
        what = "in a closed loop, where it chooses its own pace"
        found.append(
            f"It finishes up to {text.rate(knee.most)} and {text.rate(knee.ceiling)} {what}; plan with the knee."
        )
    return found


def page(knee: Knee, *, target: str = "", slo: str = "") -> ReportPage:
    """Of one search. target, slo: what was asked, and by which bounds."""
    return ReportPage(
        title=f"tailwatch bench --find {knee.objective}" + (f" · {target}" if target else ""),
        lead=_lead(knee, slo),
        blocks=tuple(_blocks(knee)),
        foot=f"{target} · {slo} · tailwatch {VERSION}",
        status="resolved" if knee.resolved else "unresolved",
        bad=not knee.resolved,
    )


def _lead(knee: Knee, slo: str) -> str:
    if knee.rate is None:
        return f"No knee was found: {knee.reason}."
    within = f" within `{slo}`" if slo else ""
    way = knee.gives_way
    first = (
        f" Above it {way.replace(knee.saturates, knee.saturates.upper(), 1) if knee.saturates else way}." if way else ""
    )
    return f"This server keeps {text.share(knee.attainment)} of its requests{within} up to {_interval(knee)}.{first}"


def _interval(knee: Knee) -> str:
    assert knee.rate is not None
    spread = f" ({knee.low:.4g} to {knee.high:.4g})" if knee.low is not None and knee.high is not None else ""
    return f"{knee.rate:.4g} requests per second{spread}"


def _blocks(knee: Knee) -> list[Block]:
    rows = [row for row in knee.rows() if row.verdict != INVALID]
    bounds = bound_names(knee)
    basis = {"fit": "95 % interval, all probes near it", "bracket": "proved to hold"}
    knee_tile = Tile(
        "Knee",
        "-" if knee.rate is None else f"{knee.rate:.4g}/s",
        basis.get(knee.basis, knee.basis),
        bad=not knee.resolved,
    )
    blocks: list[Block] = [
        Tiles(
            (
                knee_tile,
                Tile("Asked for", text.share(knee.attainment), "of the requests that count"),
                Tile("Most finished", text.rate(knee.most), "whatever its latency"),
                Tile("Closed loop", text.rate(knee.ceiling), "where the search began"),
            )
        )
    ]
    if not knee.resolved:
        blocks.append(Words((f"{knee.reason}.",), "Unresolved", warn=True))
    if rows:
        blocks.append(_chart(knee, rows, bounds))
    heads = (*HEADS, *(f"{name} kept" for name in bounds))
    note = "Of the settled part of each probe. Goodput and throughput per second."
    blocks.append(Table("The sweep", heads, tuple(cells(row, bounds) for row in knee.rows()), note, LEFT, 4))
    return blocks


def _chart(knee: Knee, rows: list[SweepRow], bounds: tuple[str, ...]) -> Chart:
    offered = [row.rate for row in rows]
    marks = (ReferenceLine("x", knee.rate, f"knee {knee.rate:.4g}/s"),) if knee.rate is not None else ()
    bands = (Band(knee.low, knee.high),) if knee.low is not None and knee.high is not None else ()
    x = Axis("near", "offered, requests per second")
    rates = View(
        "goodput and throughput", x, Axis("near", "per second"),
        (
            Curve("offered", "dashed", "soft", offered, offered),
            Curve("throughput", "line", "ink", offered, [row.throughput for row in rows]),
            Curve("goodput", "line", "good", offered, [row.goodput for row in rows]),
        ),
        marks, bands, note="Goodput leaves throughput at the knee: what is finished is late. Grey: its interval.",
        alt=", ".join(f"{text.rate(row.goodput)} good of {text.rate(row.throughput)}" for row in rows),
    )  # fmt: skip
    share = Curve(
        "all bounds", "line", "good", offered, [row.share for row in rows],
        [row.low for row in rows], [row.high for row in rows],
    )  # fmt: skip
    each = tuple(
        Curve(f"{name} alone", "dashed", colour, offered, [row.shares.get(name) for row in rows])
        for name, colour in zip(bounds, EACH, strict=False)
    )
    kept = View(
        "share that is good", x, Axis("share", "share"), (share, *each),
        (*marks, ReferenceLine("y", knee.attainment, f"asked {text.share(knee.attainment)}", "soft")), bands,
        note="The bound that falls first shows which phase saturates.",
        alt=", ".join(f"at {row.rate:.4g}/s {text.share(row.share)}" for row in rows),
    )  # fmt: skip
    return Chart("Where goodput leaves throughput", (rates, kept), height=300)
