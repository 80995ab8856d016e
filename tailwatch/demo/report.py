"""The table of both arms side by side, and the sentences under it."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
ARMS = ("observe", "freeze")
TITLES = {"observe": "GC left alone", "freeze": "gc='freeze'"}
METRICS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
SAME = 0.03  # a single run per arm: closer than this is called the same
CLIENT_LAG = 0.05  # seconds of the client's own lag from which its tails are doubtful
OTHERS = 0.25  # CPUs taken by others from which small differences are doubtful
Report = dict[str, Any]


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs, at most WIDTH columns wide."""
    width = min(console.width, WIDTH)
    console.print(_setting(report), width=width, highlight=False, soft_wrap=False)
    console.print(table(report), width=width)
    for line in sentences(report):
        console.print(Text(line), width=width)


def table(report: Report) -> Table:
    """Rows of measures, a column for each arm, and what the freeze changed."""
    found = Table(
        title=f"the same load twice; SLO {report['slo']}", title_style="bold", box=box.HORIZONTALS, pad_edge=False
    )
    right = (*(TITLES[arm] for arm in ARMS), "change")
    for heading in ("seen by the client", "", *right):
        found.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    left, frozen = (report["arms"][arm] for arm in ARMS)
    for name, key in METRICS:
        _add_distribution(found, name, left["client"][key], frozen["client"][key])
    _add_goodput(found, left["client"], frozen["client"])
    found.add_row(Text("seen by tailwatch", style="bold"))
    _add_server(found, left["server"], frozen["server"])
    return found


def _add_distribution(found: Table, name: str, left: Report, frozen: Report) -> None:
    for key in ("p50", "p90", "p99", "p99.9", "max"):
        if left[key] is not None and frozen[key] is not None:
            found.add_row(name, key, ms(left[key]), ms(frozen[key]), change(left[key], frozen[key]))
            name = ""
    found.add_section()


def _add_goodput(found: Table, left: Report, frozen: Report) -> None:
    rates = (left["goodput"], frozen["goodput"])
    found.add_row("goodput", "req/s", *(f"{rate:.1f}" for rate in rates), change(*rates))
    found.add_row("throughput", "req/s", *(f"{arm['throughput']:.1f}" for arm in (left, frozen)))
    shares = (_miss_share(left), _miss_share(frozen))
    found.add_row("missed the SLO", "requests", *(f"{share:.1%}" for share in shares), change(*shares))
    if any(arm["unfinished"] or arm["errors"] for arm in (left, frozen)):
        counts = (arm["unfinished"] + sum(arm["errors"].values()) for arm in (left, frozen))
        found.add_row("errors, unfinished", "requests", *(str(count) for count in counts))
    found.add_section()


def _miss_share(client: Report) -> float:
    return 1.0 - client["attainment"] if client["attainment"] is not None else 0.0


def _add_server(found: Table, left: Report, frozen: Report) -> None:
    both = (left["tailwatch"], frozen["tailwatch"])
    for name, key in (("ITL", "itl_p99"), ("ITL without GC", "itl_without_gc_p99")):
        found.add_row(name, "p99", *(ms(arm[key]) for arm in both))
    found.add_row("ITL", "max", *(ms(arm["itl_max"]) for arm in both))
    found.add_row("ITL without GC", "max", *(ms(arm["itl_without_gc_max"]) for arm in both))
    generations = ("/".join(str(count) for count in arm["collections"]) for arm in (left, frozen))
    found.add_row("collections", "gen 0/1/2", *generations)
    for name, unit, key in (("paused by GC", "s", "paused"), ("late by GC, estimate", "stream s", "late")):
        totals = [sum(arm[key].values()) for arm in both]
        found.add_row(name, unit, *(f"{total:.2f}" for total in totals), change(*totals))
    longest = [max((value or 0.0 for value in arm["longest"].values()), default=0.0) for arm in both]
    found.add_row("longest pause", "", *(ms(value) for value in longest), change(*longest))


def ms(seconds: float | None) -> str:
    """Milliseconds with a unit."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def change(before: float | None, after: float | None) -> str:
    """In words what `after` is beside `before`."""
    if not before or after is None:
        return "-"
    if after == 0:
        return "gone"
    ratio = after / before
    if abs(ratio - 1) < SAME:
        return "the same"
    word = "lower" if ratio < 1 else "higher"
    factor = max(ratio, 1 / ratio)
    return f"{factor:.1f}x {word}" if factor >= 2 else f"{abs(ratio - 1):.0%} {word}"


def _setting(report: Report) -> str:
    planned = report["schedule"]
    machine = report["machine"]
    rate = f"{report['rate']:.1f} req/s"
    if report["capacity"] is not None:
        rate += f" ({report['rate'] / report['capacity']:.0%} of the {report['capacity']:.1f} measured)"
    objects = " and ".join(f"{report['arms'][arm]['server']['objects']:,}" for arm in ARMS)
    return (
        f"\nTracked objects before traffic: {objects}. Load: {rate}, {planned['requests']:,} requests of "
        f"{planned['mean_tokens']:.0f} tokens in {planned['seconds']:.0f} s, ramps and drains, "
        f"plan {planned['hash']} in both arms.\n"
        f"Python {machine['python']}, {machine['cpus']} CPUs, load average {machine['load_average'][0]:.1f} before.\n"
    )


def sentences(report: Report) -> list[str]:
    """What it means, the doubts, and where to look further."""
    lines = [""]
    for arm in ARMS:
        lines.append(f"{TITLES[arm]}: {report['arms'][arm]['server']['tailwatch']['headline']}")
    lines.append(_verdict(report))
    lines += _doubts(report)
    lines += ["", *_further(report)]
    return lines


def _verdict(report: Report) -> str:
    left, frozen = (report["arms"][arm]["client"] for arm in ARMS)
    gap = change(left["itl"]["max"], frozen["itl"]["max"])
    return (
        f"For the client: the longest gap between tokens went from {ms(left['itl']['max'])} to "
        f"{ms(frozen['itl']['max'])} ({gap}), goodput from {left['goodput']:.1f} to {frozen['goodput']:.1f} req/s "
        f"({change(left['goodput'], frozen['goodput'])})."
    )


def _doubts(report: Report) -> list[str]:
    clients = [report["arms"][arm]["client"]["client"] for arm in ARMS]
    lags = [max(client["loop_lag_max"], client["send_lag"]["max"] or 0.0) for client in clients]
    doubts = [f"The client itself, its collector off, was late by {ms(lags[0])} and {ms(lags[1])} at most."]
    if max(lags) > CLIENT_LAG:
        doubts.append("That is in these latencies too: read the tails with care.")
    busy = {arm: report["arms"][arm]["cores_of_others"] or 0.0 for arm in ARMS}
    if max(busy.values()) > OTHERS:
        cores = " and ".join(f"{cores:.1f}" for cores in busy.values())
        doubts.append(f"Other processes kept {cores} CPUs busy during the two arms: small differences may be theirs.")
    left = report["arms"]["observe"]["server"]["collections"]
    if left[-1] == 0:
        doubts.append("No full collection fell into the window of the arm left alone: try a longer --duration.")
    return doubts


def _further(report: Report) -> list[str]:
    file = report.get("file")
    first = "" if file else "tailwatch demo --json demo.json, then "
    further = f"{first}tailwatch doctor {file or 'demo.json'} --slow"
    return [
        f"look further: {further}",
        "scrape it:    tailwatch demo --serve     (the frozen server alone; prints its /metrics address)",
    ]
