"""A view as tables for a terminal, as wide as it is: what matters least leaves first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tailwatch.diagnose.text import CAUSE_NAMES, ms

if TYPE_CHECKING:
    from tailwatch.cli.top.view import GroupView, ProcessRow

_GAP = 2  # between columns
_NOTES = (
    "delay: time that pauses added to tokens, an estimate. up to: time that gaps coincided with pauses of 50 us and "
    "more, an upper bound. Both are stream seconds per second, summed over streams.",
    "paused: share of the time in collections and tailwatch's own pauses. longest: the longest finished pause.",
    "Percentiles are exact to 1.1 %, max and longest to 2.2 %. Good: finished without error within the SLO.",
)
_MOST_CAUSES = 6
_LEAST_ROWS = 3  # of the processes, however low the terminal


@dataclass(frozen=True, slots=True)
class _Column:
    """cells: of each row. rank: those with the largest leave first when it gets narrow."""

    heading: str
    cells: Sequence[Text]
    rank: int = 0
    right: bool = True

    @property
    def width(self) -> int:
        return max([cell_len(self.heading), *(cell_len(cell.plain) for cell in self.cells)])


def screen(view: GroupView, width: int, height: int | None = None, notice: str = "") -> Group:
    """Everything, in so many columns; in so many lines, None: as many as it takes."""
    head = [*_head(view), *([Text(notice, style="bold yellow")] if notice else [])]
    latency, lost = _latencies(view), _lost(view)
    notes = [Text(note, style="dim") for note in _NOTES]
    used = sum(_lines(text, width) for text in head) + len(view.latencies) + max(1, len(view.lost)) + 8
    room = None if height is None else max(_LEAST_ROWS, height - used)
    processes, left_out = _processes(view, room)
    parts: list[Text | Table] = [
        *head,
        Text(),
        _table(latency, width),
        Text(),
        _title("stream time lost to pauses, all processes"),
    ]
    parts.append(_table(lost, width) if view.lost else Text("none", style="dim"))
    parts += [Text(), _title("processes"), _table(processes, width), *left_out]
    below = used + len(processes[0].cells) + len(left_out)
    if height is None or below + sum(_lines(note, width) for note in notes) < height:
        parts += [Text(), *notes]
    return Group(*parts)


def _lines(text: Text, width: int) -> int:
    return max(1, -(-cell_len(text.plain) // max(1, width)))


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _head(view: GroupView) -> list[Text]:
    living = sum(row.lives for row in view.processes)
    covers = "since the group started, " if view.since_start else "the last "
    first = Text.assemble(
        ("tailwatch top", "bold"), f"  {view.directory}  ", (covers, "dim"),
        f"{_duration(view.seconds)}", ("  processes ", "dim"), f"{living}",
    )  # fmt: skip
    share = "no request judged yet" if view.attainment is None else f"{view.attainment:.2%} of judged requests"
    tokens = f"{view.tokens:.0f}" if view.tokens >= 100 else f"{view.tokens:.3g}"
    second = Text.assemble(
        ("in flight ", "dim"), (f"{view.in_flight}", "bold"), ("  finished ", "dim"), f"{view.finished:.3g} req/s",
        ("  tokens ", "dim"), f"{tokens}/s", ("  good ", "dim"), (f"{view.good:.3g} req/s", "bold"),
        f", {share}", (f"  SLO {view.slo}" if view.slo else "", "dim"),
    )  # fmt: skip
    return [first, second, *_others(view)]


def _others(view: GroupView) -> list[Text]:
    lines = []
    if view.causes:
        largest = list(view.causes.items())[:_MOST_CAUSES]
        shares = ", ".join(f"{CAUSE_NAMES.get(cause, cause)} {share:.0%}" for cause, share in largest)
        lines.append(Text.assemble(("delay by cause ", "dim"), shares))
    if view.other_slo:
        each = ", ".join(f"{name} {'-' if share is None else f'{share:.2%}'}" for name, share in view.within.items())
        lines.append(Text(f"share within {view.other_slo}, each bound alone (itl: of gaps): {each}"))
    if view.dropped:
        counts = ", ".join(f"{name} {count}" for name, count in view.dropped.items())
        lines.append(Text(f"dropped events and internal errors of tailwatch since the start: {counts}", style="yellow"))
    return lines


def _duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _time(seconds: float | None) -> Text:
    return Text("-" if seconds is None else ms(seconds))


def _latencies(view: GroupView) -> list[_Column]:
    rows = view.latencies
    return [
        _Column("latency", [Text(row.name) for row in rows], right=False),
        _Column("count", [Text(str(row.count)) for row in rows], 4),
        _Column("p50", [_time(row.p50) for row in rows], 2),
        _Column("p90", [_time(row.p90) for row in rows], 3),
        _Column("p99", [_time(row.p99) for row in rows], 0),
        _Column("max", [_time(row.max) for row in rows], 1),
        _Column("measured", [Text(row.measured, style="dim") for row in rows], 5, right=False),
    ]


def _lost(view: GroupView) -> list[_Column]:
    rows = view.lost
    return [
        _Column("process", [Text(row.source) for row in rows], right=False),
        _Column("cause", [Text(CAUSE_NAMES.get(row.cause, row.cause)) for row in rows], 1, right=False),
        _Column("delay", [Text(f"{ms(row.delay)}/s", style="bold" if row.delay else "") for row in rows]),
        _Column("up to", [Text(f"{ms(row.overlap)}/s") for row in rows]),
    ]


def _processes(view: GroupView, room: int | None) -> tuple[list[_Column], list[Text]]:
    """The table, and a line about processes that are not in it."""
    rows, left_out = list(view.processes), view.ended
    if room is not None and len(rows) > room:
        rows.sort(key=lambda row: (-row.standing, not row.lives, -(row.paused or 0.0)))
        rows, unseen = rows[: room - 1], rows[room - 1 :]
        more = f"{len(unseen)} more, " if unseen else ""
    else:
        more = ""
    words = f"{more}{f'{left_out} that exited earlier, ' if left_out else ''}not shown"
    columns = [
        _Column("process", [Text(row.name, style="" if row.lives else "dim") for row in rows], right=False),
        _Column("pid", [Text(str(row.pid)) for row in rows], 3),
        _Column("paused", [Text("-" if row.paused is None else f"{row.paused:.2%}") for row in rows], 1),
        _Column("gen 2", [Text(str(row.full)) for row in rows], 2),
        _Column("longest", [_time(row.longest) if row.longest_cause else Text("-") for row in rows], 1),
        _Column("", [Text(row.longest_cause, style="dim") for row in rows], 4, right=False),
        _Column("collector", [_collector(row) for row in rows], 5, right=False),
        _Column("now", [_state(row) for row in rows], right=False),
    ]
    return columns, [Text(words, style="dim")] if more or left_out else []


def _collector(row: ProcessRow) -> Text:
    """The policy, and what it does now."""
    parts = [row.policy, f"{row.slices:.3g} slices/s" if row.slices else ""]
    parts += [
        f"{row.unfrozen} unfrozen" if row.unfrozen and row.policy else "",
        f"interference {row.interference}" * bool(row.interference),
    ]
    return Text(", ".join(part for part in parts if part) or "-", style="yellow" if row.interference else "dim")


def _state(row: ProcessRow) -> Text:
    if row.standing > 0:
        return Text(f"PAUSED for {ms(row.standing)}: {row.standing_cause}", style="bold red")
    return Text("running") if row.lives else Text("exited", style="dim")


def _table(columns: Sequence[_Column], width: int) -> Table:
    """The columns that fit, those of rank 0 always."""
    shown = list(columns)
    while sum(column.width + _GAP for column in shown) - _GAP > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), collapse_padding=True, header_style="dim")
    for column in shown:
        table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    return table
