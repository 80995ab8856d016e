"""tailwatch ablate: the order of the runs, the file of variants, servers that are always stopped, and stalls live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import results
from tailwatch.loadtest.ablate import AblationPlan, Found, ablate, order
from tailwatch.loadtest.compare import SHOWN
from tailwatch.loadtest.metrics import measures
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.server_process import command_of, server
from tailwatch.loadtest.variants import Variant, parse, read

from ..support.ports import free_port
from ..support.process import Tailwatch
from ..support.waiting import until
from .test_compare import run

pytestmark = pytest.mark.integration

SERVER = Path(__file__).with_name("ablation_server.py")
LIMIT = 170  # seconds of a comparison, below the limit of its test
A, B = Variant("a"), Variant("b")


class Virtual:
    """Runs that take no time: B needs half of A's; runs that are ordered so do not count."""

    def __init__(self, bad: tuple[int, ...] = (), verdict: str = "invalid", interrupted: bool = False) -> None:
        self.done: list[tuple[str, str, int]] = []
        self.bad, self.verdict, self.interrupted = bad, verdict, interrupted

    def __call__(self, variant: Variant, load: str, pair: int) -> Result:
        verdict = self.verdict if len(self.done) in self.bad else "valid"
        self.done.append((variant.name, load, pair))
        rate = float(load or 40)
        made = run(pair, ms=10.0 if variant is B else 20.0, seed=len(self.done), verdict=verdict, rate=rate)
        made.interrupted = self.interrupted and verdict != "valid"
        made.schedule["digest"] = f"{pair}"
        return made


def all_of(plan: AblationPlan, runs: Virtual) -> Found:
    """What is found in the end."""
    *_, last = ablate(plan, runs)
    return last


def test_the_order_of_two() -> None:
    """A B, B A, B A, A B: neither comes first more often, and a drift does not separate them."""
    pairs = ["".join("AB"[i] for i in order(2, pair)) for pair in range(8)]
    assert pairs == ["AB", "BA", "BA", "AB"] * 2
    places = [2 * pair + order(2, pair).index(0) - 2 * pair - order(2, pair).index(1) for pair in range(4)]
    drift = [pair * (order(2, pair).index(0) - order(2, pair).index(1)) for pair in range(4)]
    assert sum(places) == 0 and sum(drift) == 0


def test_the_order_of_three() -> None:
    """In six blocks each of the six orders comes once."""
    assert len({tuple(order(3, pair)) for pair in range(6)}) == 6


@given(st.integers(2, 20), st.integers(0, 1000))
def test_each_runs_once_a_pair(variants: int, pair: int) -> None:
    """An order leaves out none."""
    assert sorted(order(variants, pair)) == list(range(variants))


def test_pairs_with_equal_arms_beside_them() -> None:
    """Six pairs: each variant and the first again, one schedule a pair; half the latency is shown, A/A is the floor."""
    runs = Virtual()
    found = all_of(AblationPlan([A, B]), runs)
    assert Counter(name for name, _, _ in runs.done) == {"a": 6, "a (again)": 6, "b": 6}
    comparison = found.compare(measures(["ttft"], [50.0, 99.0]))
    table = comparison.tables[0]
    assert (table.a, table.b, table.runs, table.paired) == ("a", "b", (6, 6), True)
    assert "A/A" in table.floor_of and {row.verdict for row in table.rows} == {SHOWN}


def test_several_variants_and_loads() -> None:
    """Each variant against the first at each load; without the equal arm where it is not wanted."""
    runs = Virtual()
    comparison = all_of(AblationPlan([A, B, Variant("c")], loads=("20", "80"), again=False), runs).compare()
    assert len(runs.done) == 36 == AblationPlan([A, B, Variant("c")], loads=("20", "80"), again=False).runs
    assert [(table.b, table.load) for table in comparison.tables] == [
        ("b", "poisson at 20/s"), ("b", "poisson at 80/s"), ("c", "poisson at 20/s"), ("c", "poisson at 80/s")
    ]  # fmt: skip
    assert {table.b for table, _ in comparison.shown} == {"b"}


def test_a_pair_that_does_not_count_is_repeated() -> None:
    """With a schedule of its own, at the end; the bad run is kept, and left out by the comparison."""
    runs = Virtual(bad=(1, 5))
    found = all_of(AblationPlan([A, B], again=False), runs)
    assert [pair for _, _, pair in runs.done] == [pair for pair in range(8) for _ in "ab"]
    assert found.compare().tables[0].runs == (6, 6)
    assert any("left out: invalid" in note for note in found.compare().tables[0].notes)


def test_it_ends_where_no_pair_counts() -> None:
    """Nine pairs at most for six; what there is has no interval."""
    runs = Virtual(bad=tuple(range(0, 100, 2)))
    found = all_of(AblationPlan([A, B], again=False), runs)
    assert len(runs.done) == 18
    assert found.compare().looked_at == 0


def test_an_interrupted_run_ends_it() -> None:
    """Nothing is started after Ctrl-C; the pairs before it stand."""
    runs = Virtual(bad=(5,), interrupted=True)
    seen = list(ablate(AblationPlan([A, B], again=False), runs))
    assert len(runs.done) == 6 and len(seen) == 2


def test_what_was_measured_outlives_an_error() -> None:
    """A server that fails in the third pair: two pairs and the begun one stand, and are compared."""
    runs = Virtual()

    def dying(variant: Variant, load: str, pair: int) -> Result:
        if len(runs.done) == 5:
            raise TailwatchError("it would not start again")
        return runs(variant, load, pair)

    seen = []
    with pytest.raises(TailwatchError, match="not start again"):
        for found in ablate(AblationPlan([A, B], again=False), dying):
            seen.append(found)
    assert len(seen) == 2 and seen[-1].whole == 2
    assert sorted(map(len, seen[-1].runs.values())) == [2, 3]
    assert seen[-1].compare().tables[0].runs == (2, 2)


def test_fewer_pairs_than_six_are_refused() -> None:
    """They would give no interval."""
    with pytest.raises(OptionError, match="6 to 1000"):
        AblationPlan([A, B], pairs=5)


def test_the_runs_are_kept_for_compare(tmp_path: Path) -> None:
    """A file a variant, which compare reads."""
    found = all_of(AblationPlan([A, B]), Virtual())
    found.save(tmp_path / "runs")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a.json", "a__again_.json", "b.json"]
    assert [one.settings["pair"] for one in results.load(tmp_path / "runs" / "b.json")] == list(range(6))


# Variants


def test_a_file_of_variants(tmp_path: Path) -> None:
    """Names, settings of the environment, words; comments and blank lines are none."""
    (tmp_path / "v").write_text(
        "# baseline first\ndefault:\n\nfreeze: TAILWATCH_GC=freeze\nbatch 32: A=1 B='two words' --max 32 C=3 # more\n"
    )
    assert read(tmp_path / "v") == [
        Variant("default"),
        Variant("freeze", (), {"TAILWATCH_GC": "freeze"}),
        Variant("batch 32", ("--max", "32", "C=3"), {"A": "1", "B": "two words"}),
    ]


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("a:", "expected 2 to 20 variants"),
        ("a:\nb", "line 2: .*colon"),
        ("a:\n\na: x", "line 3: .*once"),
        ("a:\nb: 'x", "line 2: No closing quotation"),
        ("a:\n: x", "line 2: expected a name"),
        ("a:\nb: x\0y", "line 2: no command takes"),
    ],
)
def test_what_is_no_file_of_variants(written: str, error: str) -> None:
    """The error names the line."""
    with pytest.raises(TailwatchError, match=error):
        parse(written)


@given(st.text())
def test_any_text_is_variants_or_an_error(written: str) -> None:
    """Nothing else is raised, whatever stands in the file."""
    with suppress(TailwatchError):
        assert len(parse(written)) >= 2


def test_no_file_of_variants(tmp_path: Path) -> None:
    """A missing file, and one that is no text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, error in (("nothing", "No such file"), ("bytes", "no text")):
        with pytest.raises(TailwatchError, match=error):
            read(tmp_path / name)


# Servers


def notes(path: Path) -> list[dict[str, object]]:
    """What each started server wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def has_ended(pid: object) -> bool:
    """Also where it was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_end(started: list[dict[str, object]]) -> bool:
    """Waits for the end of servers, and of their children."""
    pids = [note[name] for note in started for name in ("pid", "child") if note[name]]
    return until(lambda: all(map(has_ended, pids)), f"the end of {pids}")


def start(tmp_path: Path, *options: str, port: int, patience: float = 60.0, path: str | None = None):  # type: ignore[no-untyped-def]
    """The server with options."""
    command = [sys.executable, "-S", str(SERVER), str(port), str(tmp_path / "notes"), *options]
    return server(command, {"VARIANT": "x"}, "127.0.0.1", port, path=path, patience=patience)


def test_a_server_is_fresh_and_stopped_with_its_children(tmp_path: Path) -> None:
    """Ready inside, with the variant's environment; afterwards it, its child and its hold on the port are gone."""
    port = free_port()
    for _ in range(2):
        with start(tmp_path, "--child", port=port, path="/health") as ended:
            assert ended() == ""
    started = notes(tmp_path / "notes")
    assert len(started) == 2 and {note["variant"] for note in started} == {"x"}
    assert all(note["child"] for note in started) and all_end(started)


def test_a_server_is_stopped_when_the_run_fails(tmp_path: Path) -> None:
    """Whatever is raised inside."""
    with pytest.raises(ZeroDivisionError):
        with start(tmp_path, "--child", port=free_port()):
            raise ZeroDivisionError
    assert all_end(notes(tmp_path / "notes"))


def test_a_server_that_ends_meanwhile_is_reported(tmp_path: Path) -> None:
    """With how it ended."""
    with start(tmp_path, port=free_port()) as ended:
        os.kill(int(str(notes(tmp_path / "notes")[0]["pid"])), signal.SIGKILL)
        assert until(ended) == "signal 9, and printed nothing"


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """The error has how it ended and its last words; a missing program is reported, too."""
    with pytest.raises(TailwatchError, match=r"\(exit status 1\);.*:\nno memory left"):
        with start(tmp_path, "--dies", port=free_port()):
            raise AssertionError("it is not ready")
    with pytest.raises(TailwatchError, match="could not be started"):
        with server(["/no/such/program"], {}, "127.0.0.1", free_port(), path=None, patience=1):
            raise AssertionError("it is not there")


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience it was given; one that ignores SIGTERM is killed."""
    monkeypatch.setattr("tailwatch.loadtest.server_process.GENTLE", 0.1)
    with pytest.raises(TailwatchError, match=r"not ready after \d"):
        with start(tmp_path, "--deaf", port=free_port(), patience=2.0):
            raise AssertionError("it is not ready")
    assert all_end(notes(tmp_path / "notes"))


def test_a_port_that_is_taken_is_no_fresh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server's answers are not measured."""
    monkeypatch.setattr("tailwatch.loadtest.server_process.GENTLE", 0.1)
    port = free_port()
    with start(tmp_path, port=port):
        with pytest.raises(TailwatchError, match="another server listens"):
            with start(tmp_path, port=port):
                raise AssertionError("it is not fresh")


def test_the_command_of_a_variant() -> None:
    """Its words behind the server's, the port in its place in both; nothing is expanded."""
    assert command_of("serve --port {port} '$HOME'", ["--x={port}"], 80) == ["serve", "--port", "80", "$HOME", "--x=80"]
    for wrong in ("", "serve 'x"):
        with pytest.raises(OptionError, match="expected a command"):
            command_of(wrong, [], 80)


# Live


def arguments(tmp_path: Path, variants: str, *options: str) -> list[str]:
    """Of tailwatch ablate with the server above."""
    (tmp_path / "variants").write_text(variants)
    command = f"'{sys.executable}' -S '{SERVER}' {{port}} '{tmp_path / 'notes'}'"
    return ["ablate", "--server", command, "--variants", str(tmp_path / "variants"), "--model", "m", *options]


def call(tmp_path: Path, variants: str, *options: str) -> Tailwatch:
    """The command in a process of its own."""
    return Tailwatch(*arguments(tmp_path, variants, *options), stderr=subprocess.PIPE, cwd=tmp_path)


def called(tmp_path: Path, variants: str, *options: str) -> tuple[int, str, str]:
    """The same, to its end: status, output, errors."""
    with call(tmp_path, variants, *options) as going:
        out, err = going.finish(seconds=LIMIT)
        return going.popen.returncode, out, err


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(180)
def test_planted_stalls_are_found_live(tmp_path: Path) -> None:
    """A server that stands still five sixths of its time against one that does not: TTFT is shown to be higher, in
    fresh servers, interleaved, with the pair's schedule, and every server is gone afterwards."""
    pytest.importorskip("httptools", reason="the client needs it: pip install httptools")
    looked = ("--metrics", "ttft", "--percentiles", "50", "--json", "c.json", "-o", "runs", "--no-baseline-repeat")
    looked += ("--html", "c.html")
    load = ("--rate", "60", "--duration", "0.25", "--warmup", "2")
    status, out, err = called(tmp_path, "steady: VARIANT=s\nstalls: --stand 0.2 --work 0.04\n", *load, *looked)
    assert status in (0, 1), err
    started = notes(tmp_path / "notes")
    assert len(started) >= 12 and all_end(started)
    sides = [results.load(tmp_path / "runs" / f"{name}.json") for name in ("steady", "stalls")]
    assert [one.schedule["digest"] for one in sides[0]] == [one.schedule["digest"] for one in sides[1]]
    assert len({one.schedule["digest"] for one in sides[0]}) == len(sides[0])
    starts = sorted((one.started, name) for side, name in zip(sides, "AB", strict=True) for one in side)
    assert "".join(name for _, name in starts).startswith("ABBABAABABBA")
    if sum(one.valid and two.valid for one, two in zip(*sides, strict=True)) < 6:
        pytest.skip(
            "this machine is too busy to keep a schedule of 15 requests, as the runs report: run it on a quieter one"
        )
    assert "stalls" in (tmp_path / "c.html").read_text()
    row = json.loads((tmp_path / "c.json").read_text())["comparison"]["tables"][0]["rows"][0]
    assert row["difference"]["low"] > 0 and row["verdict"] == "shown" and row["better"] is False
    assert "stalls is higher than steady" in out and "worse" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_server_survives_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM or SIGHUP in the middle of a run: it ends soon, and the server and its child with it."""
    pytest.importorskip("httptools", reason="the client needs it: pip install httptools")
    load = ("--rate", "20", "--duration", "300", "--warmup", "0")
    with call(tmp_path, "a: --child\nb: --child\n", *load) as going:
        until(lambda: notes(tmp_path / "notes"), "the first server")
        going.signal(number)
        _, err = going.finish()
    assert going.popen.returncode != 0, err
    started = notes(tmp_path / "notes")
    assert len(started) == 1 and started[0]["child"] and all_end(started)


def test_a_server_that_will_not_start_again_costs_no_pair(tmp_path: Path) -> None:
    """Exit status 1, the comparison of the pairs before, the reason, and all files."""
    pytest.importorskip("httptools", reason="the client needs it: pip install httptools")
    looked = ("--rate", "60", "--duration", "0.1", "--warmup", "0", "--no-baseline-repeat")
    files = ("--json", "c.json", "--html", "c.html", "-o", "runs")
    status, out, err = called(tmp_path, "a:\nb: --last 5\n", *looked, *files)
    assert status == 1, err
    assert "ended after" in err and "of 6 pairs" in err and "no memory left" in err
    assert "Traceback" not in err and "ttft" in out.lower()
    assert json.loads((tmp_path / "c.json").read_text())["comparison"]["tables"]
    assert (tmp_path / "c.html").exists() and len(results.load(tmp_path / "runs" / "a.json")) >= 1


@pytest.mark.slow  # each pair is repeated
@pytest.mark.timeout(180)
def test_a_run_whose_server_died_does_not_count(tmp_path: Path) -> None:
    """Its answers are those of a dying server: the pair is repeated, and in the end there is none. Of 30 requests that
    are expected, each run has the second."""
    pytest.importorskip("httptools", reason="the client needs it: pip install httptools")
    looked = ("--rate", "300", "--duration", "0.1", "--warmup", "0", "--no-baseline-repeat", "-o", "runs")
    status, _, err = called(tmp_path, "a:\nb: --after 2\n", *looked)
    assert status == 1, err
    died = results.load(tmp_path / "runs" / "b.json")
    assert {one.validity.verdict for one in died} == {"invalid"}
    assert all("server exited" in one.validity.reasons[-1] for one in died)


def test_wrong_calls(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """Exit status 2 and a sentence."""
    pytest.importorskip("httptools", reason="the client needs it: pip install httptools")
    both = "a:\nb:\n"
    for variants, options, error in (
        ("a:\n", (), "expected 2 to 20 variants"),
        (both, ("--port", "80"), "or --port"),
        (both, ("--pairs", "3"), "pairs=3"),
        (both, ("--rates", "20,20"), "distinct numbers"),
        (both, ("--rates", "20", "--rate", "3"), "leave out --rate"),
        (both, ("--save-schedule", "s.json", "--rate", "5"), "its own schedule"),
        (both, ("--metrics", "speed"), "metrics='speed'"),
        ("a: --dies\nb:\n", (), "no memory left"),
    ):
        load = options or ("--rate", "5")
        status, _, err = command(*arguments(tmp_path, variants, "--duration", "0.2", *load))
        assert status == 2 and error in err, (variants, options, err)
