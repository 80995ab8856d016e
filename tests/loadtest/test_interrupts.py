"""Ctrl-C: what was had until then is printed and marked, nothing measured is reported, and SIGINT is as it was
before."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailwatch.loadtest import results
from tailwatch.loadtest.bench import Conditions, run_workload
from tailwatch.loadtest.endpoint import endpoint
from tailwatch.loadtest.merging import merged
from tailwatch.loadtest.process import on_interrupt
from tailwatch.loadtest.recorder import Recorder
from tailwatch.loadtest.report import bench as page
from tailwatch.loadtest.report import csvfile, document, table
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.session import in_loop
from tailwatch.loadtest.trial import probe_of
from tailwatch.loadtest.workload import Workload

from ..support.process import Tailwatch
from ..support.waiting import until
from . import made_runs

pytest.importorskip("httptools", reason="the load tester's client: pip install '.[load]'")

pytestmark = pytest.mark.integration

Start = Callable[..., Any]
INTERRUPTED = 130


def bench(*arguments: str) -> Tailwatch:
    """The command line, in a process of its own."""
    return Tailwatch("bench", *arguments, stderr=subprocess.PIPE)


def ended(going: Tailwatch) -> tuple[str, str]:
    """What it printed after one Ctrl-C, in a sentence and not in a traceback, with the shell's status for that."""
    going.signal(signal.SIGINT)
    out, err = going.finish()
    assert "Traceback" not in err and "never awaited" not in err and "destroyed" not in err, err
    assert going.popen.returncode == INTERRUPTED, (out, err)
    return out, err


# What is printed


def interrupted(verdict: str = "interrupted") -> Result:
    """A run that Ctrl-C ended."""
    result = made_runs.stalled(seconds=5)
    result.interrupted, result.validity.verdict = True, verdict
    result.goodput = replace(result.goodput, believed=False)
    return result


def test_an_interrupted_run_is_marked_everywhere(tmp_path: Path) -> None:
    """As a field, in the file, in each row of the CSV, in the table and on the page."""
    result = interrupted()
    results.save(tmp_path / "r.json", [result])
    assert json.loads((tmp_path / "r.json").read_text())["runs"][0]["interrupted"] is True
    assert results.load(tmp_path / "r.json")[0].interrupted
    csvfile.write([result], tmp_path / "r.csv")
    with open(tmp_path / "r.csv", newline="") as file:
        assert {row["run_interrupted"] for row in csv.DictReader(file)} == {"1"}
    shown = document.document(page.page(result))
    assert "interrupted" in shown and "interrupted" in table.show(result)
    whole = made_runs.stalled(seconds=5)
    assert not whole.interrupted and "interrupted" not in table.show(whole)


@pytest.mark.parametrize("verdict", ["interrupted", "capped", "invalid", "valid"])
def test_an_interrupted_run_is_not_valid(verdict: str) -> None:
    """Whatever else is wrong with it: not valid, no verdict over its SLO, nothing to a search."""
    result = interrupted(verdict)
    assert not result.valid
    assert "held" not in table.show(result)
    assert probe_of(result, 40.0).invalid


def test_one_interrupted_client_makes_the_load_so() -> None:
    """Of several processes one may have been at its end already."""
    assert merged([made_runs.stalled(seconds=5), interrupted()]).interrupted


def test_a_file_of_an_earlier_version_is_read() -> None:
    """By its verdict."""
    data = interrupted().as_dict()
    del data["interrupted"]
    assert Result.from_dict(data).interrupted


# When it comes


@pytest.mark.parametrize("processes", ["1", "2"])
def test_in_the_run(fault_server: Start, tmp_path: Path, processes: str) -> None:
    """The table, and the file, of what there is."""
    server = fault_server()
    options = ["--model", "m", "--rate", "50", "--slo", "ttft<=10s", "--json", str(tmp_path / "r.json")]
    with bench(server.url(tokens=2), *options, "--processes", processes) as going:
        until(lambda: len(server.truth()["requests"]) > 30)
        out, err = ended(going)
    assert "interrupted" in out, err
    (result,) = results.load(tmp_path / "r.json")
    assert result.interrupted and result.outcomes.good > 10 and result.duration < 59


@pytest.mark.parametrize("processes", ["1", "2"])
def test_in_the_warm_up(fault_server: Start, tmp_path: Path, processes: str) -> None:
    """Nothing was measured, and that is reported; no file is left that holds nothing."""
    server = fault_server()
    options = ["--model", "m", "--rate", "50", "--warmup", "100000", "--json", str(tmp_path / "r.json")]
    with bench(server.url(tokens=2), *options, "--processes", processes) as going:
        until(lambda: len(server.truth()["requests"]) > 10)
        out, err = ended(going)
    assert "nothing was measured" in err and out == ""
    assert not (tmp_path / "r.json").exists()


def test_in_the_warm_up_of_the_second_run(fault_server: Start, tmp_path: Path) -> None:
    """The first run stands."""
    server = fault_server()
    options = ["--model", "m", "--rate", "20", "--requests", "3", "--runs", "1000", "--json", str(tmp_path / "r.json")]
    with bench(server.url(tokens=2), *options, "--quiet") as going:
        until(lambda: "verdict" in going.read_line(), "the end of the first run")
        ended(going)
    first, *rest = results.load(tmp_path / "r.json")
    assert first.outcomes.good == 3 and not first.interrupted
    assert not any(run.interrupted for run in rest[:-1])


def test_while_the_ceiling_is_looked_for(fault_server: Start) -> None:
    """Unresolved, with what the closed loop gave."""
    server = fault_server()
    with bench(server.url(tokens=1), "--model", "m", "--find", "throughput") as going:
        until(lambda: len(server.truth()["requests"]) > 10)
        out, _ = ended(going)
    assert "unresolved" in out.lower() and "interrupt" in out.lower()


def test_as_a_run_of_the_ceiling_begins() -> None:
    """The event loop of a run raises KeyboardInterrupt before and after the run itself: no probe follows."""
    from tailwatch.loadtest.knee_search import FIRST_WORKERS, KneeSearch
    from tailwatch.loadtest.search import Limits

    class Loop:
        """Of two runs the second is interrupted as it begins."""

        def rate(self, workers: int, run: object) -> float:
            if workers > FIRST_WORKERS:
                raise KeyboardInterrupt
            return 100.0

    going = KneeSearch(None, Conditions(), Limits())  # type: ignore[arg-type]
    found = going._ceiling(Loop())  # type: ignore[arg-type]
    assert found.rate == 100.0 and going.interrupted


def test_between_two_probes_of_a_search(
    fault_server: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The sweep of the probes before it."""
    from tailwatch import cli
    from tailwatch.loadtest import search
    from tailwatch.loadtest.knee_search import KneeSearch

    probes: list[float] = []

    def stop_after_two(*arguments: Any, **options: Any) -> Any:
        probe = arguments[0]

        def counted(rate: float, seconds: float, settle: float) -> Any:
            if len(probes) == 2:
                os.kill(os.getpid(), signal.SIGINT)
            probes.append(rate)
            return probe(rate, seconds, settle)

        return find(counted, *arguments[1:], **options)

    find = search.find
    monkeypatch.setattr(search, "find", stop_after_two)
    monkeypatch.setattr(
        KneeSearch, "_ceiling", lambda *_: search.ClosedLoopCeiling(100.0, 1, ())
    )  # this server's is some thousands
    before = signal.getsignal(signal.SIGINT)
    options = ["--model", "m", "--find", "goodput", "--slo", "ttft<=2s@90%", "--probe-seconds", "0.5", "--quiet"]
    url = fault_server().url(tokens=1, first=0.002)
    assert cli.main(["bench", url, *options, "--json", str(tmp_path / "k.json")]) == INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before
    assert "interrupt" in capsys.readouterr().out.lower()
    assert json.loads((tmp_path / "k.json").read_text())["knee"]["tried"]


# SIGINT is as it was


class Mine:
    """A handler of the host's."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


@pytest.fixture
def mine() -> Any:
    """SIGINT is the host's own."""
    handler = Mine()
    before = signal.signal(signal.SIGINT, handler)
    yield handler
    signal.signal(signal.SIGINT, before)


def test_a_handler_is_put_back(mine: Mine) -> None:
    """After the block, also after an exception in it; meanwhile ours is called."""
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError), on_interrupt(lambda: seen.append(1)):
        os.kill(os.getpid(), signal.SIGINT)
        raise ZeroDivisionError
    assert seen == [1] and mine.calls == 0
    assert signal.getsignal(signal.SIGINT) is mine


def test_another_thread_sets_none(mine: Mine) -> None:
    """Only the main thread can."""
    seen: list[object] = []

    def look() -> None:
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [mine]


def test_a_signal_that_is_ignored_stays_so() -> None:
    """A shell's background job is not for Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with on_interrupt(lambda: None):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


LOOPS = """
import asyncio, gc, sys
from tailwatch.loadtest.bench import Conditions, run_workload
from tailwatch.loadtest.endpoint import endpoint
from tailwatch.loadtest.workload import Workload
run_workload(Workload(endpoint=endpoint(sys.argv[1], model="m"), model="m", rate=50.0, requests=2), Conditions())
print([one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop) and not one.is_closed()])
"""


def test_a_run_leaves_no_loop_behind(fault_server: Start) -> None:
    """Nor does it give the thread one that it did not have."""
    command = [sys.executable, "-c", LOOPS, fault_server().url(tokens=2)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.stdout.strip() == "[]", done.stderr


TERMINATED = """
import asyncio, os, signal, socket, sys
from tailwatch.loadtest import session
if sys.argv[1] == "asyncio":
    session.new_event_loop = asyncio.new_event_loop
def leave(number, frame):
    raise SystemExit(128 + number)
signal.signal(signal.SIGHUP, leave)
class Ends(asyncio.Protocol):
    def data_received(self, data):
        os.kill(os.getpid(), signal.SIGHUP)
async def main():
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(Ends, ours)
    theirs.send(b"x")
    await asyncio.Event().wait()
session.in_loop(main)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_exit_in_a_callback_is_not_lost(loop: str) -> None:
    """A signal's handler that raises SystemExit while a transport's callback runs: the loop would log it and go on."""
    done = subprocess.run([sys.executable, "-c", TERMINATED, loop], capture_output=True, text=True, timeout=50)
    assert done.returncode == 128 + signal.SIGHUP, done.stderr


def workload(url: str, **more: Any) -> Workload:
    """Of some requests."""
    return Workload(endpoint=endpoint(url, model="m"), model="m", rate=50.0, **{"requests": 5, **more})


@pytest.mark.parametrize("interruptible", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_leaves_the_hosts_handler(fault_server: Start, mine: Mine, interruptible: bool, processes: int) -> None:
    """As a library, inside a test suite."""
    found = run_workload(
        workload(fault_server().url(tokens=2)), Conditions(processes=processes), interruptible=interruptible
    )
    assert found.outcomes.good == 5
    assert signal.getsignal(signal.SIGINT) is mine


def test_a_run_that_fails_leaves_it_too(fault_server: Start, mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised in it; the collector is as it was, too."""
    from tailwatch.loadtest.engine import LoadRun

    def broken(self: LoadRun) -> Result:
        raise ZeroDivisionError

    monkeypatch.setattr(LoadRun, "_result", broken)
    with pytest.raises(ZeroDivisionError):
        run_workload(workload(fault_server().url(tokens=2)), Conditions(), interruptible=True)
    assert signal.getsignal(signal.SIGINT) is mine


def test_a_library_gets_its_keyboard_interrupt(fault_server: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """Where no more was asked for: raised, with everything closed and the collector as it was."""
    server = fault_server()
    gc.unfreeze()
    callbacks = list(gc.callbacks)

    def press() -> None:
        until(lambda: len(server.truth()["requests"]) > 5)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        run_workload(workload(server.url(tokens=2), requests=3000), Conditions())
    pressing.join()
    assert (gc.get_freeze_count(), gc.callbacks) == (0, callbacks)
    gc.collect()
    assert "destroyed" not in capfd.readouterr().err


def test_a_keyboard_interrupt_in_a_callback_of_the_loop_is_not_lost(
    fault_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop logs what a transport's callback raises, and goes on."""
    noted: list[Any] = []
    note = Recorder.note

    def press(self: Recorder, *arguments: Any) -> None:
        noted.append(arguments)
        if len(noted) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        note(self, *arguments)

    monkeypatch.setattr(Recorder, "note", press)
    with pytest.raises(KeyboardInterrupt):
        run_workload(workload(fault_server().url(tokens=2), requests=3000), Conditions())
    assert len(noted) < 100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_keyboard_interrupt_is_raised_at_once() -> None:
    """Where the first one meets a task that will not end."""

    async def stubborn() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        in_loop(stubborn)
