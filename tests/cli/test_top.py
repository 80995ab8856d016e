"""`tailwatch top`: which group, what a screen shows, and how it fits the terminal. Snapshots are stamped by hand."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tailwatch import _hot, cli, snapshots
from tailwatch.cli import find_group
from tailwatch.cli.top import main
from tailwatch.cli.top.screen import screen
from tailwatch.cli.top.view import GroupView, view_of
from tailwatch.cli.top.window_history import Marks
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.options.slo import SLO

MS, SECOND = 1_000_000, 1_000_000_000
BOUNDS = (2 * SECOND, 200 * MS, 0, 0, 990_000)


def make_core(role: str) -> Any:
    return _hot.Core(role, 8, BOUNDS, 0, lambda scope: "", lambda waiting, stream: waiting)


def serve(core: Any, gaps: list[int], ago: float = 30) -> None:
    """One request: its first token after 50 ms, the others after these gaps."""
    at = int(_hot.now() - ago * SECOND)
    stream = core.stream("m", "/r", at, "", "")
    at += 50 * MS
    stream.token(at=at)
    for gap in gaps:
        at += gap
        stream.token(at=at)
    stream.close(at=at)


def pause(core: Any) -> None:
    core.policy_begin()
    core.policy_end()


@pytest.fixture
def cores() -> tuple[Any, Any]:
    """An API process that has served one request, and an engine that has paused."""
    api, engine = make_core("api"), make_core("engine")
    serve(api, [20 * MS] * 98 + [400 * MS])
    pause(engine)
    return api, engine


def take(cores: tuple[Any, Any]) -> snapshots.Snapshot:
    return snapshots.take([core.address for core in cores])


def drawn(view: GroupView, width: int = 120, height: int | None = None, notice: str = "") -> str:
    """What stands on a terminal."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(screen(view, width, height, notice))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_the_first_look_is_at_everything(cores: tuple[Any, Any]) -> None:
    """Percentiles, rates over the group's time, attainment, processes by name and pid."""
    now = take(cores)
    view = view_of("/dev/shm/g", now, None)
    assert view.since_start
    itl = next(latency for latency in view.latencies if latency.name == "ITL")
    assert (itl.count, itl.p50, itl.max) == (99, pytest.approx(0.02, rel=0.011), pytest.approx(0.4))
    assert view.finished == view.good == pytest.approx(1 / now.seconds)
    assert view.tokens == pytest.approx(100 / now.seconds)
    assert (view.attainment, view.slo, view.in_flight) == (1.0, "ttft<=2s,tpot<=200ms@99%", 0)
    assert [row.name for row in view.processes] == ["api-0", "engine-0"]


def test_a_window_holds_what_came_in_between(cores: tuple[Any, Any]) -> None:
    """Counts and the longest pause are those since the earlier snapshot; what is open now is now's."""
    earlier = take(cores)
    serve(cores[0], [10 * MS] * 5)
    still_open = cores[0].stream("m", "/r", None, "", "")
    view = view_of("/g", take(cores), earlier)
    still_open.close()
    itl = next(latency for latency in view.latencies if latency.name == "ITL")
    assert (view.since_start, itl.count, view.in_flight) == (False, 5, 1)
    assert itl.max == pytest.approx(0.01, rel=0.022)
    assert [row.longest for row in view.processes] == [0.0, 0.0]


def test_a_process_that_stands_still_is_shown(cores: tuple[Any, Any]) -> None:
    """For how long and of what, on a line of its own, also where there is no room for all processes."""
    others = [make_core("worker") for _ in range(30)]
    cores[1].policy_begin()
    view = view_of("/g", take((*cores, *others)), None)  # type: ignore[arg-type]
    cores[1].policy_end()
    row = next(row for row in view.processes if row.name == "engine-0")
    assert row.standing > 0 and row.standing_cause == "gc_own"
    text = drawn(view, 120, 20)
    assert "PAUSED for" in next(line for line in text.splitlines() if "engine-0" in line)
    assert "more, not shown" in text
    assert len(text.splitlines()) <= 20


def test_losses_are_shown_by_process_and_cause(cores: tuple[Any, Any]) -> None:
    """Stream seconds per second, the estimate and the bound."""
    api = cores[0]
    stream = api.stream("m", "/r", None, "", "")
    for token in range(20):
        stream.token()
        if token == 15:
            api.policy_begin()
            until = _hot.now() + 3 * MS
            while _hot.now() < until:
                pass
            api.policy_end()
    view = view_of("/g", take(cores), None)
    (lost,) = view.lost
    assert (lost.source, lost.cause) == ("api", "gc_own")
    assert 0 < lost.delay <= lost.overlap
    line = next(line for line in drawn(view).splitlines() if line.startswith("api") and "own pauses" in line)
    assert "/s" in line


def test_shares_of_the_delay_stand_by_cause_the_largest_first(cores: tuple[Any, Any]) -> None:
    """They sum to 1: what is left is shown without a cause, too. Without a delay there is no line."""
    view = view_of("/g", take(cores), None)
    delay = take(cores).delay
    assert list(view.causes) == sorted((cause for cause in delay if delay[cause]), key=lambda cause: -delay[cause])
    assert sum(view.causes.values()) == pytest.approx(1) and "gc2" not in view.causes
    line = next(line for line in drawn(view).splitlines() if line.startswith("delay by cause"))
    assert all(f"{cause} {share:.0%}" in line for cause, share in view.causes.items())
    calm = make_core("api")
    assert "delay by cause" not in drawn(view_of("/g", take((calm, calm)), None))


def test_another_slo_is_each_bound_alone(cores: tuple[Any, Any]) -> None:
    """The share of each histogram; the attainment stays that of the SLO in force."""
    view = view_of("/g", take(cores), None, SLO.parse("ttft<=10ms,itl<=100ms"))
    assert view.within == {"ttft": 0.0, "itl": pytest.approx(98 / 99)}
    assert view.attainment == 1.0
    assert "each bound alone" in drawn(view) and "ttft 0.00%, itl 98.99%" in drawn(view)


@pytest.mark.parametrize("width", [16, 30, 50, 80, 200])
def test_it_fits_the_terminal(cores: tuple[Any, Any], width: int) -> None:
    """No line is wider; the name and p99 of a latency are there at any width that holds them."""
    lines = drawn(view_of("/dev/shm/tailwatch-run-abcdefgh", take(cores), None), width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    if width >= 30:
        heading = next(line for line in lines if line.startswith("latency"))
        assert "p99" in heading
        assert ("measured" in heading) == (width > 100)


def test_control_characters_cannot_reach_the_terminal() -> None:
    """Control characters of a role, and of the directory's name, are shown as ?."""
    core = make_core("en\x1b[2Jgine")
    text = drawn(view_of("/tmp/a\x1b]0;x\x07b", snapshots.take([core.address]), None))
    assert "\x1b" not in text and "\x07" not in text
    assert "?" in text


def test_a_view_is_json(cores: tuple[Any, Any]) -> None:
    """What --json writes is what was shown."""
    view = view_of("/g", take(cores), None)
    assert json.loads(json.dumps(view.as_dict()))["processes"][1]["name"] == "engine-0"


def test_marks_are_few_and_as_old_as_the_window(cores: tuple[Any, Any]) -> None:
    """However often it looks; the one to compare with is the youngest that is at least a window old."""
    kept, snap = Marks(60), take(cores)
    assert kept.oldest is None
    for step in range(2000):
        kept.add(step * 0.05, snap)
    assert len(kept) <= 62
    ages = [1999 * 0.05 - at for at, _ in kept._kept]
    assert 60 <= ages[0] <= 61.1 and ages[1] < 60


# ---- which group ----


@pytest.fixture
def make_group(tmp_path: Path) -> Callable[..., Path]:
    """Directories like those of `tailwatch run`, with or without a process in them."""
    made: list[Any] = []

    def make(name: str, lives: bool) -> Path:
        directory = tmp_path / f"tailwatch-run-{name}"
        directory.mkdir(mode=0o700)
        if lives:
            core = make_core("api")
            assert core.join(str(directory), 0) is None
            made.append(core)
        return directory

    return make


def test_the_only_group_is_found(make_group: Callable[..., Path], tmp_path: Path) -> None:
    """Other directories, files and links are passed over; a variable names another."""
    directory = make_group("only", lives=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "tailwatch-run-file").touch()
    (tmp_path / "tailwatch-run-link").symlink_to(directory)
    assert find_group.find({}, str(tmp_path)) == str(directory)
    assert find_group.find({"TAILWATCH_DIR": " /other "}, str(tmp_path)) == "/other"


def test_of_several_groups_the_living_is_meant(make_group: Callable[..., Path], tmp_path: Path) -> None:
    """With more than one that lives they are listed, and nothing is guessed."""
    make_group("dead", lives=False)
    first = make_group("first", lives=True)
    assert find_group.find({}, str(tmp_path)) == str(first)
    second = make_group("second", lives=True)
    with pytest.raises(TailwatchError, match="several process groups") as error:
        find_group.find({}, str(tmp_path))
    assert f"--dir {first}   (1 running process)" in str(error.value) and f"--dir {second}" in str(error.value)
    assert "dead" not in str(error.value)


@pytest.mark.parametrize("among", [".", "not/there"])
def test_without_a_group_it_prints_what_to_do(among: str) -> None:
    """An empty place, and none."""
    with pytest.raises(TailwatchError, match="tailwatch run -- CMD"):
        find_group.find({}, among)


# ---- the call ----


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("200ms", 0.2), ("0.2", 0.2), (" 1.5 S", 1.5), ("1m", 60), ("1h", 3600)]
)
def test_an_interval_has_a_unit_or_is_seconds(text: str, seconds: float) -> None:
    """As people write it."""
    assert main._seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1ms", "2h", "fast", "-1s", "nan", "1e3"])
def test_a_bad_interval_is_refused(text: str) -> None:
    """From 50 ms to an hour."""
    with pytest.raises(OptionError, match="interval"):
        main._seconds(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dir", "nowhere"], "No such file"),
        (["--dir", ".", "--interval", "fast"], "interval"),
        (["--dir", ".", "--window", "2h"], "window"),
        (["--dir", ".", "--slo", "fast"], "slo"),
        (["some/directory"], "--dir"),
        (["http://127.0.0.1:1"], "cannot connect"),
    ],
)
def test_a_wrong_call_is_a_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2."""
    assert cli.main(["top", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_without_rich_it_prints_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names the extra."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
    assert cli.main(["top", "--dir", "."]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install '.[top]'" in line


def test_what_is_no_terminal_gets_one_table(
    make_group: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, written as JSON, and nothing in the directory has changed."""
    directory = make_group("g", lives=True)
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert cli.main(["top", "--dir", str(directory), "--json", str(tmp_path / "top.json")]) == 0
    assert "api-0" in capsys.readouterr().out
    assert json.loads((tmp_path / "top.json").read_text())["processes"][0]["name"] == "api-0"
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    assert cli.main(["top", "--dir", str(directory), "--json", "no/where.json"]) == 2


def test_the_collector_s_policy_is_shown() -> None:
    """What it is, that it fell back, what it does a second, and the interference; where it is wide enough."""
    core = make_core("api")
    kinds, modes = snapshots.POLICIES, snapshots.POLICY_MODES
    core.policy_is(kinds.index("idle"), modes.index("full collections"), snapshots.POLICY_WHYS.index("proof"))
    earlier = snapshots.take([core.address])
    core.count_interference(snapshots.INTERFERENCES.index("disable"))
    view = view_of("/g", snapshots.take([core.address]), earlier)
    (row,) = view.processes
    assert (row.policy, row.interference, row.slices, row.unfrozen) == ("idle, full collections", 1, 0.0, None)
    assert "idle, full collections, interference 1" in drawn(view, 160)
    assert "interference" not in drawn(view, 60)


def test_a_process_without_a_status_has_no_policy(cores: tuple[Any, Any]) -> None:
    """Of another version, or ended."""
    assert [row.policy for row in view_of("/g", take(cores), None).processes] == ["", ""]
