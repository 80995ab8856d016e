"""Ctrl-C and SIGTERM at any moment of any command: no traceback, status 130 or 143, and it ends soon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ..support.process import Process, Tailwatch, clean_environment
from ..support.waiting import until

pytest.importorskip("httptools", reason="the load tester's client: pip install 'tailwatch[load]'")

pytestmark = pytest.mark.integration

SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Sends this process a signal at the n-th audit event (imports, files, sockets, ...) after the command's handlers are in
# place, and notes that, with the modules of ours that were there when they were.
HOOK = """
import os, signal, sys
_state = [0, False]
def _hook(event, arguments):
    if _state[1]:
        return
    _state[1] = True
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler or _state[0] < 0:
            return
        if _state[0] == 0:
            with open(os.environ["NOTE"], "w") as note:
                note.write(",".join(name for name in sys.modules if name.startswith("tailwatch")))
        _state[0] += 1
        if _state[0] == int(os.environ["MOMENT"]):
            _state[0] = -1
            with open(os.environ["NOTE"], "a") as note:
                note.write("\\nfired")
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    finally:
        _state[1] = False
if "tailwatch" in sys.orig_argv[1:3]:  # not the processes that it starts
    sys.addaudithook(_hook)
"""

FRAME = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


class Answers(BaseHTTPRequestHandler):
    """Three tokens to each request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = FRAME * 3 + b"data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def runs(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of bench --json."""
    path = tmp_path_factory.mktemp("runs") / "r.json"
    options = ["--model", "m", "--rate", "50", "--requests", "20", "--quiet", "--json", str(path)]
    with Tailwatch("bench", url, *options, stdout=subprocess.DEVNULL) as going:
        going.finish()
    return path


def commands(url: str, runs: Path, place: Path) -> dict[str, list[str]]:
    """Each command as a user has it; those that end by themselves do so in a few seconds."""
    load = ["--model", "m", "--rate", "50", "--requests", "60", "--quiet"]
    few = ["--model", "m", "--rate", "50", "--requests", "5", "--quiet"]
    variants = place / "variants"
    server = f"{sys.executable} -m http.server {{port}} --bind 127.0.0.1"
    find = ["--find", "goodput", "--slo", "ttft<=2s@90%", "--probe-seconds", "0.5", "--budget", "5", "--quiet"]
    replay = ["--model", "m", "--slo", "ttft<=2s@90%", "--budget", "5"]
    files = ["--json", str(place / "r.json"), "--csv", str(place / "r.csv"), "--html", str(place / "r.html")]
    return {
        "bench": ["bench", url, *load, *files],
        "bench --processes": ["bench", url, *load, "--processes", "2"],
        "bench --find": ["bench", url, "--model", "m", *find, "--json", str(place / "k.json")],
        "demo": ["demo", "--experiment", "--short", "--json", str(place / "d.json")],
        "run": ["run", "--", "sleep", "50"],
        "top": ["top", "--dir", str(place / "none"), "--once"],
        "doctor": ["doctor", str(runs)],
        "trace": ["trace", "--dir", str(place / "none"), "-o", str(place / "t.json")],
        "gc": ["gc", "--dir", str(place / "none"), "status"],
        "compare": ["compare", str(runs), str(runs), "--html", str(place / "c.html")],
        "capacity": ["capacity", "--knee", "40", "--expect", "100"],
        "capacity --trace-replay": ["capacity", "--trace-replay", "builtin:conversation", *replay, url],
        "nsys": ["nsys", str(place / "none.sqlite")],
        "ablate": ["ablate", "--server", server, "--variants", str(variants), "--ready-path", "/", *few],
    }


NAMES = tuple(commands("", Path(), Path()))


def check(command: list[str], place: Path, number: int, moment: int) -> bool:
    """Runs it with one signal at one moment. Whether the command lived until then."""
    hook = place / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    note = place / "note"
    note.write_text("")
    variables = {"PYTHONPATH": str(hook), "NOTE": str(note), "MOMENT": str(moment), "SIGNAL": str(number)}
    environment = clean_environment(**variables)
    with Process(sys.executable, "-m", "tailwatch", *command, env=environment, stderr=subprocess.PIPE) as going:
        with suppress(AssertionError):  # nothing happens in it any more: it has no such moment
            until(lambda: not going.running or note.read_text().endswith("fired"), seconds=10)
        if not (fired := note.read_text().endswith("fired")) and going.running:
            going.signal(signal.SIGTERM)  # a kill would leave what it has started
        _, errors = going.finish(seconds=20)
    noted = note.read_text()
    assert "Traceback" not in errors and "Exception ignored" not in errors, (moment, errors)
    first = set(noted.partition("\n")[0].split(","))
    assert first <= {"tailwatch", "tailwatch_boot", "tailwatch_boot.console"}, "modules before the handlers"
    if not fired:
        return False
    assert going.popen.returncode == 128 + number, (moment, going.popen.returncode, errors)
    return True


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", NAMES)
def test_in_the_imports(name: str, number: signal.Signals, url: str, runs: Path, tmp_path: Path) -> None:
    """While the command starts: nothing is measured and nothing is written, and it is over at once."""
    assert check(commands(url, runs, tmp_path)[name], tmp_path, number, 40)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", NAMES)
def test_at_any_moment(name: str, number: signal.Signals, url: str, runs: Path, tmp_path: Path) -> None:
    """From the first event to the last that the command has, or to the 6 000th."""
    (tmp_path / "variants").write_text("a:\nb:\n")
    command = commands(url, runs, tmp_path)[name]
    for moment in (1, 150, 1000, 2500, 6000):
        if not check(command, tmp_path, number, moment):
            break


@pytest.mark.parametrize("number", SIGNALS)
def test_what_was_measured_is_written(number: signal.Signals, url: str, tmp_path: Path) -> None:
    """In the middle of a run: the files are there, marked as interrupted."""
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "csv", "html")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    load = ["--model", "m", "--rate", "50", "--requests", "30", "--runs", "1000", "--quiet"]
    with Tailwatch("bench", url, *load, *options, stderr=subprocess.PIPE) as going:
        until(lambda: "verdict" in going.read_line(), "the end of the first run")
        going.signal(number)
        _, errors = going.finish()
    assert "Traceback" not in errors and going.popen.returncode == 128 + number, errors
    assert all(path.exists() for path in files.values())
    whole = json.loads(files["json"].read_text())["runs"]
    assert not whole[0]["interrupted"] and all(not run["interrupted"] for run in whole[:-1])


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_search_writes_what_it_found(number: signal.Signals, url: str, tmp_path: Path) -> None:
    """In its first probe: the knee is unresolved, with the reason."""
    path = tmp_path / "k.json"
    find = ["--find", "goodput", "--slo", "ttft<=2s@90%", "--probe-seconds", "20", "--budget", "30m"]
    with Tailwatch("bench", url, "--model", "m", *find, "--json", str(path), stderr=subprocess.PIPE) as going:
        assert going.popen.stderr is not None
        seen = ""
        while "closed loop, 4 workers" not in seen:
            line = going.popen.stderr.readline()
            assert line, seen
            seen += line
        going.signal(number)
        _, errors = going.finish()
    assert "Traceback" not in errors and going.popen.returncode == 128 + number, errors
    knee = json.loads(path.read_text())["knee"]
    assert not knee["resolved"] and "interrupted" in knee["reason"]


def test_signals_are_as_they_were_after_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """For a program that calls the command line."""
    from tailwatch import cli

    before = [signal.getsignal(number) for number in SIGNALS], sys.unraisablehook
    assert cli.main(["capacity", "--knee", "40", "--expect", "100"]) == 0
    assert ([signal.getsignal(number) for number in SIGNALS], sys.unraisablehook) == before
    assert "replicas" in capsys.readouterr().out


def test_a_lost_interrupt_comes_again() -> None:
    """Raised in a destructor it would be printed, and the command go on."""
    from tailwatch.interrupts import handled

    class Dies:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            os.getpid()

    def last_words() -> None:
        dies = Dies()
        del dies
        threading.Event().wait(50)

    with handled() as status_of:
        with pytest.raises(KeyboardInterrupt):
            last_words()
        assert (status_of(130), status_of(0)) == (143, 143)
