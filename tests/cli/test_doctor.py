"""The command line: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import cli
from tailwatch.cli import find_group
from tailwatch.errors import TailwatchError


def histogram(count: int = 0, p99: float = 0.02) -> dict[str, Any]:
    """A saved histogram whose percentiles are all the same."""
    top = p99 if count else None
    stored = dict.fromkeys(("50", "90", "95", "99", "99.9"), top)
    return {"count": count, "sum": count * p99, "min": top, "max": top, "p": stored}


def saved(**changed: Any) -> dict[str, Any]:
    """A saved snapshot of a healthy server."""
    zero = {"gc0": 0.0, "gc2": 0.0, "gc_own": 0.0}
    data: dict[str, Any] = {
        **{"taken": 1.0, "seconds": 60.0, "tokens": 100, "in_flight": 0, "opened": 100, "label_overflow": 0},
        **{name: histogram(1000) for name in ("ttft", "itl", "itl_without_gc", "tpot", "e2e")},
        **{name: histogram() for name in ("abandoned_wait", "send_wait")},
        **{name: dict(zero) for name in ("paused", "overlap", "delay")},
        **{name: {"ttft": dict(zero), "itl": dict(zero)} for name in ("overlap_by_phase", "delay_by_phase")},
        "queue": {"proxy": histogram(), "accept": histogram()},
        "labels": [["m", "r"]],
        "requests": {"good": 100, "late": 0},
        "outcomes": {"good": 100, "miss": 0, "excluded": 0},
        "attainment": 1.0,
        "fluidity": 1.0,
        "arrivals": {},
        "drops": {},
        "errors": {},
        "slo": {"ttft": 2.0, "tpot": 0.2, "itl": None, "e2e": None, "attainment": 0.99},
        "gc": {"pauses": {}, "collections": {}, "callbacks": dict(zero), "max": dict(zero)},
        "processes": [{"role": "api", "name": "api-0", "paused": {"gc2": 1.0}, "collections": {}}],
        "slowest": [],
        "tail": {"ttft": [], "itl": []},
    }
    return {**data, **changed}


def paused() -> dict[str, Any]:
    """A saved snapshot in which generation 2 takes most of p99."""
    delay = {"ttft": {}, "itl": {"gc2": 5.0}}
    slow = {
        **{"when": "2026-01-02T03:04:05.678000+00:00", "phase": "itl", "gap": 0.183, "typical": 0.02},
        **{"overlap": {"gc2": 0.161}, "delay": {"gc2": 0.158}, "client": 0.0, "accept": 0.0, "unexplained": 0.0},
        **{"complete": True, "request_id": "req-1", "trace_id": "", "model_name": "m", "route": "/r", "token": 9},
    }
    return saved(itl=histogram(1000, 0.183), delay_by_phase=delay, overlap_by_phase=delay, slowest=[slow])


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a snapshot to a file and returns its name."""

    def to_file(data: object) -> str:
        path = tmp_path / "snapshot.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return str(path)

    return to_file


def wrong_call(*arguments: str) -> None:
    """Runs what argparse must refuse."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


def test_a_healthy_server_exits_with_0(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline, "No problems found", and the tail."""
    assert cli.main(["doctor", write(saved())]) == 0
    out = capsys.readouterr().out
    assert out.startswith("p99 ITL 20 ms, 20 ms without")
    assert "info    No problems found" in out
    assert "\nno gap " in out
    assert "slow gap" not in out


def test_a_finding_exits_with_1(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A finding of severity high or medium is a reason to act."""
    assert cli.main(["doctor", write(paused())]) == 1
    out = capsys.readouterr().out
    (title,) = [line for line in out.splitlines() if line.startswith("high    ")]
    assert "Up to 163 ms" in title and "p99 " in title and "generation 2" in title
    assert "-> install(app, gc='freeze')" in out


def test_low_findings_exit_with_0(write: Any) -> None:
    """What is only worth knowing is no failure."""
    assert cli.main(["doctor", write(saved(label_overflow=3))]) == 0


def test_slow_gaps_one_a_line(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """--slow-gaps lists them, or one line that there is none."""
    cli.main(["doctor", write(paused()), "--slow-gaps"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "gap 183 ms (typical 20 ms)" in last and "token 9 request=req-1 route=/r" in last
    cli.main(["doctor", write(saved()), "--slow-gaps"])
    assert capsys.readouterr().out.splitlines()[-1] == "no slow gaps recorded"


def test_json_holds_what_was_printed(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json FILE has the headline, the findings and the slow gaps."""
    target = tmp_path / "report.json"
    cli.main(["doctor", write(paused()), "--slow-gaps", "--json", str(target)])
    out, report = capsys.readouterr().out, json.loads(target.read_text(encoding="utf-8"))
    assert report["headline"] in out
    assert report["slow"][0] in out
    assert report["tail"] in out
    assert [finding["rule"] for finding in report["findings"]] == ["gc-tail"]
    assert all(finding["title"] in out and finding["advice"] in out for finding in report["findings"])


def test_json_that_cannot_be_written(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report is printed, and the exit status is that of a missing file."""
    assert cli.main(["doctor", write(saved()), "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` reads the snapshot from standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(saved())))
    assert cli.main(["doctor", "-"]) == 0
    assert "No problems found" in capsys.readouterr().out


def test_a_context_beside_the_snapshot(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the file has how the process was set up, the advice fits it."""
    context = {"gc_policy": "freeze", "freeze_done": True, "thresholds": [700, 10, 10]}
    assert cli.main(["doctor", write({"snapshot": paused(), "context": context})]) == 1
    assert "tailwatch.refreeze()" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "{}", '{"snapshot": 3}', '{"snapshot": {}, "context": 4}'])
def test_a_file_of_something_else(content: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on standard error, nothing printed, a wrong call."""
    assert cli.main(["doctor", write(content)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tailwatch: ") and captured.err.count("\n") == 1


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is named."""
    assert cli.main(["doctor", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("dokter",),
        ("doctor", "a", "b"),
        ("doctor", "a", "--dir", "b"),
        ("doctor", "a", "--fast"),
        ("demo", "--rate", "fast"),
        ("demo", "--duration", "long"),
        ("demo", "--duration", "nan"),
        ("demo", "--seed", "x"),
    ],
)
def test_wrong_calls_exit_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A call that means nothing is refused before anything runs."""
    wrong_call(*arguments)
    assert "usage: tailwatch" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the installed version."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"tailwatch {tailwatch.__version__}\n"


@pytest.mark.parametrize("option", [("--rate", "nan"), ("--rate", "0"), ("--duration", "0s"), ("--slo", "ttft<=5")])
def test_bad_values_for_the_demo(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A bad value is refused by name before anything is started."""
    assert cli.main(["demo", *option]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err.startswith("tailwatch: ") and "expected" in captured.err and option[0].strip("-") in captured.err
    )


def test_the_demo_without_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing packages are named with the command that installs them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastapi" else object())
    assert cli.main(["demo"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tailwatch: ") and "fastapi" in line and "pip install '.[demo]'" in line


def test_the_command_line_does_not_need_the_demo() -> None:
    """Neither the parser nor the doctor imports what only the demo needs."""
    code = (
        "import sys, tailwatch.cli.parser as c; c._parser(); print({'numpy', 'fastapi', 'uvicorn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_as_a_module(write: Any, tmp_path: Path) -> None:
    """python -m tailwatch is the same program, with the same exit status."""
    command = [sys.executable, "-m", "tailwatch", "doctor", write(paused())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("p99 ITL 183 ms; up to 163 ms ")
    assert "generation 2, in the server; " in done.stdout


def test_the_doctor_finds_the_group_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As top does: the one that the environment names, or that is there; without any it prints what to do."""
    monkeypatch.setenv("TAILWATCH_DIR", "/nowhere/at/all")
    assert cli.main(["doctor"]) != 0
    assert "/nowhere/at/all" in capsys.readouterr().err
    monkeypatch.delenv("TAILWATCH_DIR")
    monkeypatch.setattr(
        find_group, "find", lambda environment, **how: (_ for _ in ()).throw(TailwatchError("start one"))
    )
    assert cli.main(["doctor"]) != 0
    assert "start one" in capsys.readouterr().err
