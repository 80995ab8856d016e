"""The table of all arms side by side, and the sentences under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
LEFT = "observe"
TITLES = {LEFT: "GC left alone", "freeze": "freeze", "idle": "idle"}
ARMS = tuple(TITLES)
METRICS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"))
SAME = 0.03  # a single run per arm: closer than this is called the same
CLIENT_LAG = 0.05  # seconds of the client's own lag from which its tails are doubtful
OTHERS = 0.25  # CPUs taken by others from which small differences are doubtful
Report = dict[str, Any]


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs, at most WIDTH columns wide."""
    width = min(console.width, WIDTH)
    console.print(_setting(report), width=width, highlight=False, soft_wrap=False)
    console.print(table(report, changes=width >= WIDTH), width=width)
    for line in sentences(report):
        console.print(Text(line), width=width)


def table(report: Report, *, changes: bool = True) -> Table:
    """Rows of measures, a column for each arm, and behind it, where there is room, what it is beside the first."""
    title = f"the same load, three policies; SLO {report['slo']}"
    found = Table(title=title, title_style="bold", box=box.HORIZONTALS, pad_edge=False)
    rows = _Rows(found, changes)
    clients = [report["arms"][arm]["client"] for arm in ARMS]
    for name, key in METRICS:
        _add_distribution(rows, name, [client[key] for client in clients])
    _add_goodput(rows, clients)
    found.add_row(Text("seen by tailwatch", style="bold"))
    _add_server(rows, [report["arms"][arm]["server"] for arm in ARMS])
    return found


class _Rows:
    """A table's, each with a value for each arm."""

    def __init__(self, table: Table, changes: bool) -> None:
        self.table = table
        self._changes = changes
        table.add_column("seen by the client", no_wrap=True)
        for arm in ARMS:
            table.add_column(TITLES[arm], justify="right", no_wrap=True)
            if changes and arm != LEFT:
                table.add_column("", justify="right", no_wrap=True, style="dim")

    def add(self, name: str, values: list[float | None], text: Callable[[Any], str]) -> None:
        """The first value, then each other one and what it is beside the first."""
        self._add(name, [text(value) for value in values], [change(values[0], value) for value in values[1:]])

    def count(self, name: str, values: list[str]) -> None:
        """What is not compared."""
        self._add(name, values, [""] * (len(values) - 1))

    def _add(self, name: str, values: list[str], changed: list[str]) -> None:
        cells = [values[0]]
        for value, words in zip(values[1:], changed, strict=True):
            cells += [value, words] if self._changes else [value]
        self.table.add_row(name, *cells)


def _add_distribution(rows: _Rows, name: str, arms: list[Report]) -> None:
    for key in ("p50", "p90", "p99", "p99.9", "max"):
        if all(arm[key] is not None for arm in arms):
            rows.add(f"{name} {key}", [arm[key] for arm in arms], ms)
    rows.table.add_section()


def _add_goodput(rows: _Rows, clients: list[Report]) -> None:
    rows.add("goodput, req/s", [client["goodput"] for client in clients], "{:.1f}".format)
    rows.count("throughput, req/s", [f"{client['throughput']:.1f}" for client in clients])
    rows.add("missed the SLO", [_miss_share(client) for client in clients], "{:.1%}".format)
    if any(client["unfinished"] or client["errors"] for client in clients):
        counts = [str(client["unfinished"] + sum(client["errors"].values())) for client in clients]
        rows.count("errors, unfinished", counts)
    rows.table.add_section()


def _miss_share(client: Report) -> float:
    return 1.0 - client["attainment"] if client["attainment"] is not None else 0.0


def _add_server(rows: _Rows, servers: list[Report]) -> None:
    windows = [server["tailwatch"] for server in servers]
    for name, key in (
        ("ITL p99", "itl_p99"),
        ("ITL p99 without GC", "itl_without_gc_p99"),
        ("ITL max", "itl_max"),
        ("ITL max without GC", "itl_without_gc_max"),
    ):
        rows.count(name, [ms(arm[key]) for arm in windows])
    rows.count("collections 0/1/2", ["/".join(str(count) for count in server["collections"]) for server in servers])
    for name, key in (("paused by GC, s", "paused"), ("delay by GC, stream s", "delay")):
        rows.add(name, [sum(arm[key].values()) for arm in windows], "{:.2f}".format)
    longest = [max((value or 0.0 for value in arm["longest"].values()), default=0.0) for arm in windows]
    rows.add("longest pause", list(longest), ms)


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
    if factor < 2:
        return f"{abs(ratio - 1):.0%} {word}"
    return f"{factor:.0f}x {word}" if factor >= 100 else f"{factor:.1f}x {word}"


def _setting(report: Report) -> str:
    planned = report["schedule"]
    machine = report["machine"]
    rate = f"{report['rate']:.1f} req/s"
    if report["capacity"] is not None:
        rate += f" ({report['rate'] / report['capacity']:.0%} of the {report['capacity']:.1f} measured)"
    objects = ", ".join(f"{report['arms'][arm]['server']['objects']:,}" for arm in ARMS)
    return (
        f"\nTracked objects before traffic: {objects}. Load: {rate}, {planned['requests']:,} requests of "
        f"{planned['mean_tokens']:.0f} tokens in {planned['seconds']:.0f} s, ramps and drains, "
        f"plan {planned['hash']} in each arm.\n"
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
    left, *others = (report["arms"][arm]["client"] for arm in ARMS)
    gaps = " and ".join(
        f"{ms(each['itl']['max'])} ({change(left['itl']['max'], each['itl']['max'])})" for each in others
    )
    rates = " and ".join(f"{each['goodput']:.1f}" for each in others)
    return (
        f"For the client: the longest gap between tokens went from {ms(left['itl']['max'])} to {gaps}, goodput from "
        f"{left['goodput']:.1f} to {rates} req/s, with freeze and with idle."
    )


def _doubts(report: Report) -> list[str]:
    clients = [report["arms"][arm]["client"]["client"] for arm in ARMS]
    lags = [max(client["loop_lag_max"], client["send_lag"]["max"] or 0.0) for client in clients]
    late = ", ".join(ms(lag) for lag in lags)
    doubts = [f"The client itself, its collector off, was late by {late} at most."]
    if max(lags) > CLIENT_LAG:
        doubts.append("That is in these latencies too: read the tails with care.")
    if any(report["arms"][arm]["client"]["unfinished"] or report["arms"][arm]["client"]["errors"] for arm in ARMS):
        doubts.append("Failed and unfinished requests count as the slowest: percentiles they reach are lower bounds.")
    busy = {arm: report["arms"][arm]["cores_of_others"] or 0.0 for arm in ARMS}
    if max(busy.values()) > OTHERS:
        cores = ", ".join(f"{cores:.1f}" for cores in busy.values())
        doubts.append(f"Other processes kept {cores} CPUs busy during the arms: small differences may be theirs.")
    left = report["arms"][LEFT]["server"]["collections"]
    if left[-1] == 0:
        doubts.append("No full collection fell into the window of the arm left alone: try a longer --duration.")
    return doubts


def _further(report: Report) -> list[str]:
    file = report.get("file")
    first = "" if file else "tailwatch demo --json demo.json, then "
    further = f"{first}tailwatch doctor {file or 'demo.json'} --slow-gaps"
    return [
        f"look further: {further}",
        "scrape it:    tailwatch demo --serve     (the frozen server alone; prints its /metrics address)",
    ]
