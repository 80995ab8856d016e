"""Numbers as text, the table after a run, the CSV, the live lines."""

from __future__ import annotations

import csv
import io
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import TailwatchError
from tailwatch.loadtest.outcomes import CODE, FAULTS
from tailwatch.loadtest.report import bench as page
from tailwatch.loadtest.report import csvfile, document, progress, table, text
from tailwatch.loadtest.report.progress import Now, Progress, Steps
from tailwatch.loadtest.report.quantiles import Quantiles
from tailwatch.loadtest.requests import NEVER
from tailwatch.loadtest.results import Result

from ..support.waiting import until
from . import made_runs

pytestmark = pytest.mark.integration


def test_runs_together_have_every_number_of_one() -> None:
    """Each name and percentile of a run's own table, with the median, the lowest and the highest of the runs."""
    runs = [made_runs.stalled(seed=seed) for seed in (1, 2, 3)]
    rows = table.several_rows(runs)
    name, found = "", {}
    for row in rows:
        name = row[0] or name
        found[name, row[1]] = row[2:]
    for first, *_ in (row for row in table.between(runs[0])):
        assert {percent for one, percent in found if one == first} == {"p50", "p90", "p99", "p99.9", "max"}
    for first in ("TTFT", "E2E"):
        assert {percent for one, percent in found if one == first} == {"p50", "p90", "p95", "p99", "p99.9", "max"}
    exact = sorted(Quantiles(run, "ttft").p(95) or 0.0 for run in runs)
    assert found["TTFT", "p95"][:3] == tuple(text.duration(exact[i]) for i in (1, 0, 2))
    assert table.several(runs).startswith("3 runs\n")


def dropping(name: str, many: int) -> Result:
    """A run whose last requests were given up after a second."""
    result = made_runs.stalled(seconds=5)
    rows = result.requests
    assert rows is not None
    for i in range(len(rows) - many, len(rows)):
        rows.first[i], rows.reason[i], rows.fault[i] = NEVER, CODE["timeout"], FAULTS.index("timeout")
        rows.end[i] = rows.planned[i] + 10**9
    result.name = name
    return result


def test_a_lower_bound_is_marked_wherever_it_stands() -> None:
    """In the table of a run, on its page, and in that of all runs, where it could change the number."""
    good, bad = dropping("good", 0), dropping("bad", 30)
    assert Quantiles(bad, "ttft").text_at(95) == "≥1 s"
    assert "≥1 s" in table.show(bad) and "≥" not in table.show(good)
    assert "TTFT p99 is" not in page.lead(bad) or "≥" in page.lead(bad)
    assert ">≥1 s<" in document.document(page.page(bad))
    p95 = {row[1]: row[2:5] for row in table.several_rows([good, good, bad])[:6]}["p95"]
    fine = Quantiles(good, "ttft").text_at(95)
    assert p95 == (fine, fine, "≥1 s")
    p95 = {row[1]: row[2:5] for row in table.several_rows([good, bad, bad])[:6]}["p95"]
    assert p95 == ("≥1 s", fine, "≥1 s")


def test_examples_of_failures_stand_under_the_table() -> None:
    """Three lines at most of a kind, none wider than the table, the kind named once."""
    result = made_runs.stalled(seconds=5)
    result.examples = {"5xx": ["HTTP 503: one", "HTTP 503: " + "word " * 38], "refused": ["no connection"]}
    shown = table.show(result).splitlines()
    start = next(i for i, line in enumerate(shown) if line.startswith("like"))
    assert shown[start] == "like        5xx: HTTP 503: one" and shown[-1] == "            refused: no connection"
    assert max(map(len, shown[start:])) <= 100


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (math.nan, "-"), (0.0, "0 ms"), (1e-6, "1 µs"), (0.0009994, "999 µs"), (0.0009996, "1 ms"),
        (0.0061, "6.1 ms"), (0.895, "895 ms"), (0.9996, "1 s"), (99.94, "99.9 s"), (100.0, "1.67 min"),
        (6000.0, "1.67 h"),
        (-0.5, "-500 ms"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_a_unit(seconds: float | None, shown: str) -> None:
    """Every magnitude in the unit that a person would take."""
    assert text.duration(seconds) == shown


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_three_digits_lose_at_most_half_a_percent(number: float) -> None:
    """What is written is the number, to three digits or to the sixth place."""
    shown = float(text.three(number).replace(",", ""))
    assert abs(shown - number) <= max(0.00501 * number, 5.1e-7)
    assert "e" not in text.three(number)


@given(st.floats(min_value=0.0, max_value=1.0))
def test_a_share_is_never_rounded_to_all_or_nothing(part: float) -> None:
    """0 % and 100 % mean exactly that."""
    assert (text.share(part) in ("0%", "100%")) == (part in (0.0, 1.0))


def test_a_change_has_its_sign_or_is_a_multiple() -> None:
    """Less is minus; from twice on a factor reads better; nothing to compare with is no change."""
    assert text.change(709.39, 279.92) == "-60.5%"
    assert text.change(1.0, 1.012) == "+1.2%"
    assert text.change(6.0, 911.0) == "152x"
    assert text.change(0.0, 1.0) == text.change(None, 1.0) == "-"


def test_lines_stand_in_columns() -> None:
    """Words to the left, numbers to the right, nothing at the end of a line."""
    shown = text.lines(("a", "number"), [("name", "1"), (), ("b", "1,000")])
    assert shown == ["a     number", "------------", "name       1", "", "b      1,000"]


def row(shown: str, name: str, percent: str) -> list[str]:
    """The cells of a row of the first table: corrected, naive, hidden."""
    lines = shown.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(name + " "))
    line = next(line for line in lines[start:] if line[len("TTFT  ") :].startswith(percent + " "))
    return [cell.strip() for cell in line[len("TTFT  ") :].split("  ") if cell.strip()][1:]


def test_both_clocks_stand_side_by_side() -> None:
    """With a cap that binds, the clock that starts at the send hides the stall, and the table has by how much."""
    shown = table.show(made_runs.stalled(cap=3))
    corrected, naive, hidden = row(shown, "TTFT", "p95")
    assert (corrected, naive) == ("594 ms", "5.96 ms")
    assert hidden == "99.6x"
    assert "CAPPED" in shown
    assert "client had not sent" in shown


def test_nothing_is_hidden_where_every_request_left_in_time() -> None:
    """Without a cap both columns agree, and the words under the table have that."""
    shown = table.show(made_runs.stalled())
    assert row(shown, "TTFT", "p99") == ["911 ms", "911 ms"]
    assert "Both columns agree" in shown
    assert "valid: the plan was kept" in shown


def test_a_mean_does_not_pass_for_the_longest_gap() -> None:
    """A second of standing still in mid-stream is 21 ms of TPOT: the table has that."""
    shown = table.show(made_runs.stalled())
    assert "worst TPOT is 21 ms, " in shown and "longest gap 1 s." in shown


def test_an_invalid_run_is_called_that_with_its_reason() -> None:
    """The verdict, the reason and how many requests it touched."""
    shown = table.show(made_runs.paused())
    assert "INVALID: " in shown
    assert "stood still for 1 s" in shown and " at 15 s" in shown
    assert "requests marked" in shown


def test_a_run_without_an_answer_has_a_table_too() -> None:
    """Nothing is divided by nothing; the faults are named."""
    shown = table.show(made_runs.empty())
    assert "no latency" in shown
    assert "10 error (faults: 10 refused)" in shown


def test_the_table_fits_on_a_page() -> None:
    """At most 120 columns, whatever happened."""
    for run in (made_runs.stalled(), made_runs.stalled(cap=3), made_runs.paused(), made_runs.empty()):
        assert max(map(len, table.show(run).split("\n"))) <= 120


def test_a_closed_loop_shows_what_it_cannot_see() -> None:
    """The words under its table: it cannot see a stall."""
    run = made_runs.stalled()
    run.closed, run.settings = True, {"workers": 5}
    shown = table.show(run)
    assert "closed loop, 5 workers" in shown
    assert "not for the tail" in shown


def test_quantiles_are_exact_and_absent_where_they_do_not_reach() -> None:
    """Of 1200 requests p99.9 is the second largest; of 10 there is no p99."""
    run = made_runs.stalled()
    assert run.requests is not None
    waits = sorted(run.requests.since_planned("first"))
    found = Quantiles(run, "ttft")
    assert found.count == 1200
    assert found.p(99.9) == waits[1198] / 1e9
    assert found.p(100) == waits[-1] / 1e9
    assert found.above(0.2) == sum(wait > 200_000_000 for wait in waits)
    assert Quantiles(made_runs.empty(), "send_lag").p(99) is None
    xs, ys = found.curve()
    assert xs == sorted(xs) and ys == sorted(ys)
    assert ys[-1] == found.p(100)


def test_quantiles_of_a_run_without_its_requests_come_from_the_histogram() -> None:
    """A file may have left the requests out: 1.1 % at most off."""
    run = made_runs.stalled()
    exact = Quantiles(run, "ttft").p(99)
    run.requests = None
    assert exact is not None
    assert Quantiles(run, "ttft").p(99) == pytest.approx(exact, rel=0.012)
    assert Quantiles(run, "ttft").above(0.2) is None


def test_csv_has_a_row_a_request(tmp_path: Path) -> None:
    """Seconds from the planned start and from the send, the outcome, and nothing for what did not happen."""
    path = tmp_path / "requests.csv"
    csvfile.write([made_runs.stalled(cap=3), made_runs.empty()], path)
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert len(rows) == 1210
    assert tuple(rows[0]) == csvfile.HEADS
    late = max(rows[:1200], key=lambda each: float(each["send_lag"]))
    assert float(late["ttft"]) == pytest.approx(float(late["ttft_naive"]) + float(late["send_lag"]), abs=2e-6)
    assert late["outcome"] == "late"
    assert (rows[-1]["ttft"], rows[-1]["fault"], rows[-1]["outcome"]) == ("", "refused", "error")


def test_csv_of_a_name_is_no_formula(tmp_path: Path) -> None:
    """A spreadsheet would run it."""
    run = made_runs.empty()
    run.name = "=cmd()"
    csvfile.write([run], tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text(encoding="utf-8").split("\n")
    assert next(csv.DictReader(lines))["run"] == "'=cmd()"


def test_csv_that_cannot_be_written_has_a_reason(tmp_path: Path) -> None:
    """A run without its requests, a directory that is not there."""
    run = made_runs.stalled()
    with pytest.raises(TailwatchError, match="No such file"):
        csvfile.write([run], tmp_path / "no" / "x.csv")
    run.requests = None
    with pytest.raises(TailwatchError, match="not kept"):
        csvfile.write([run], tmp_path / "x.csv")


class Terminal(io.StringIO):
    """Remembers what was written; a terminal if asked. Blocks while `stopped` is set."""

    def __init__(self, *, live: bool) -> None:
        super().__init__()
        self.live = live
        self.stopped = threading.Event()
        self.going = threading.Event()
        self.going.set()

    def isatty(self) -> bool:
        return self.live

    def write(self, shown: str) -> int:
        self.stopped.set()
        assert self.going.wait(30)
        return super().write(shown)


NOW = Now(12.0, sent=480, finished=470, good=440, miss=30, in_flight=10, rate=40.0, goodput=36.4, ttft_p99=0.895)


def test_lines_of_a_run_that_goes_on() -> None:
    """How far, how fast, how late, how good."""
    shown = "\n".join(progress.lines(NOW, 60.0, 2400))
    for part in ("12.0 s of 60 s", "480 of 2,400", "40/s", "in flight 10", "p99 895 ms", "good 93.62%, 36.4/s"):
        assert part in shown
    assert "[#####" in shown
    assert "the last ones finish" in progress.lines(Now(61.0), 60.0, 2400)[0]


def test_a_log_gets_whole_lines_and_few() -> None:
    """Elsewhere than on a terminal: no control characters, a line now and then."""
    out = Terminal(live=False)
    with Progress(60.0, 2400, out=out) as shown:
        assert not shown.due(1.0)
        assert shown.due(6.0)
        shown.show(NOW)
        until(out.getvalue)
        assert not shown.due(NOW.elapsed + 1.0)
    assert out.getvalue().startswith("12 s: sent 480 of 2,400, ")
    assert " 40/s, in flight 10; " in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_live_lines_leave_the_terminal_as_it_was() -> None:
    """They are overwritten in place, and gone at the end."""
    out = Terminal(live=True)
    with Progress(60.0, 2400, out=out) as shown:
        shown.show(NOW)
        until(lambda: out.getvalue().count("\n") == 2)
    assert out.getvalue().endswith("\r\x1b[2K\x1b[1A\r\x1b[2K\x1b[1A\r\x1b[2K")


def test_a_terminal_that_is_stopped_does_not_stop_the_run() -> None:
    """Ctrl-S blocks the thread that writes; the measuring one goes on, and the latest is shown later."""
    out = Terminal(live=False)
    out.going.clear()
    shown = Progress(60.0, 2400, out=out)
    with shown:
        shown.show(NOW)
        assert out.stopped.wait(30)
        for elapsed in range(13, 40):
            shown.show(Now(float(elapsed)))
        out.going.set()
        until(lambda: "39 s: " in out.getvalue())
    assert out.getvalue().count("\n") <= 3


def test_a_reader_that_is_gone_ends_the_lines_and_not_the_run() -> None:
    """A closed pipe is no reason to stop measuring."""
    out = Terminal(live=False)
    with Progress(60.0, None, out=out) as shown:
        out.close()
        shown.show(NOW)
    Steps(out=out).show("a step")


def test_quiet_is_quiet() -> None:
    """Nothing is written, nothing is asked for."""
    out = Terminal(live=True)
    with Progress(60.0, 2400, out=out, quiet=True) as shown:
        assert not shown.due(100.0)
        shown.show(NOW)
    Steps(out=out, quiet=True).show("a step")
    assert out.getvalue() == ""


def test_steps_have_their_time() -> None:
    """A line a step."""
    out = io.StringIO()
    Steps(out=out).show("calibration")
    assert out.getvalue() == " 0:00  calibration\n"
