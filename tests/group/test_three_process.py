"""The example server of three processes under `tailwatch run`: whose pause it was, as seen from outside."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.process import Serving, clean_environment
from ..support.waiting import until

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_process.py"
WHERE = ("engine", "worker", "api")
STREAMS = 4
DEADLINE_SECONDS = 60
OVERLAP, LATE = "tailwatch_stream_overlap_seconds_total", "tailwatch_stream_delay_seconds_total"


class Server(Serving):
    """It, on a port of the system's choice."""

    def __init__(self, directory: Path, *options: str, **variables: str) -> None:
        run = [sys.executable, "-m", "tailwatch", "run", f"--dir={directory}", "--gc=observe", *options, "--"]
        kept = {name: value for name, value in clean_environment().items() if not name.startswith("PROMETHEUS")}
        log = directory.with_name("log")
        super().__init__(*run, sys.executable, EXAMPLE, "0", log=log, env={**kept, **variables})
        self.directory = directory

    def ask(self, method: str, path: str) -> str:
        """The whole answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read().decode()

    @property
    def metrics(self) -> dict[str, float]:
        """Samples by name and labels."""
        lines = [line for line in self.ask("GET", "/metrics").splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def collect(self, where: str) -> None:
        """A full collection in one of its processes, over when this returns."""
        ended = f'python_gc_duration_seconds_count{{generation="2",process="{where}-0"}}'
        before = self.metrics.get(ended, 0.0)
        self.ask("POST", "/debug/collect?" + urllib.parse.urlencode({"where": where}))
        until(lambda: self.metrics.get(ended, 0.0) > before)

    def doctor(self) -> str:
        """What it shows of the group, from outside."""
        return self._ask_from_outside("doctor", "--slow-gaps")

    def pauses_named(self) -> set[tuple[str, str]]:
        """Process and cause of each pause in the causes of the slow gaps that are kept, from outside."""
        file = self.directory.with_name("why.json")
        self._ask_from_outside("why", "--json", str(file))
        late = json.loads(file.read_text())["late"]
        return {(share["source"], share["cause"]) for gap in late for share in gap["others"]}

    def _ask_from_outside(self, *command: str) -> str:
        asked = [sys.executable, "-m", "tailwatch", *command, "--dir", str(self.directory)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout


@contextlib.contextmanager
def streaming(server: Server) -> Iterator[None]:
    """Inside, clients have each got a token and wait for more; then they hang up."""
    path = "/v1/completions?max_tokens=1000000"
    connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=30) for _ in range(STREAMS)]
    answers = []
    for connection in connections:
        connection.request("POST", path)
        answers.append(connection.getresponse())
    stop = threading.Event()

    def drain(answer: http.client.HTTPResponse) -> None:
        while not stop.is_set():
            answer.readline()

    first = [answer.readline() for answer in answers]
    assert all(line.startswith(b"data: ") for line in first)
    readers = [threading.Thread(target=drain, args=(answer,)) for answer in answers]
    for reader in readers:
        reader.start()
    try:
        tokens = 'tailwatch_output_tokens_total{model_name="toy",route="/v1/completions"}'
        begun = server.metrics.get(tokens, 0.0)
        until(lambda: server.metrics.get(tokens, 0.0) > begun + 20 * STREAMS)  # each has its typical gap
        yield
    finally:
        stop.set()
        for reader in readers:
            reader.join(DEADLINE_SECONDS)
        for answer, connection in zip(answers, connections, strict=True):
            answer.close()
            connection.close()
    until(lambda: server.metrics["tailwatch_requests_in_flight"] == 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """server(*options of run, **variables): gone after the test."""
    with contextlib.ExitStack() as stack:

        def start(*options: str, **variables: str) -> Server:
            started = stack.enter_context(Server(tmp_path / "group", *options, **variables))
            stack.callback(started.stop)
            return started

        yield start


def charged(metrics: dict[str, float], name: str) -> dict[str, float]:
    """Seconds that generation 2 took from tokens of all streams, by the role of the process."""
    labels = {where: f'{name}{{cause="gc2",source="{where}",phase="itl"' for where in WHERE}
    return {
        where: sum(value for series, value in metrics.items() if series.startswith(found))
        for where, found in labels.items()
    }


def until_charged(server: Server, before: dict[str, float], where: str, paused: str) -> dict[str, float]:
    """The metrics once the streams that waited have each got their next token: a charge is booked with that token. They
    waited for half of the pauses at least, all together; a pause that was hidden in the wait is followed by another."""

    def rise(name: str, metrics: dict[str, float]) -> float:
        return charged(metrics, name)[where] - charged(before, name)[where]

    def enough() -> dict[str, float]:
        after = server.metrics
        waited = rise(LATE, after) > 0 and rise(OVERLAP, after) >= 0.5 * STREAMS * (after[paused] - before[paused])
        return after if waited else {}

    def planted() -> dict[str, float]:
        server.collect(where)
        with contextlib.suppress(AssertionError):
            return until(enough, seconds=5)
        return {}

    return until(planted, f"a charge to {where}, beside {charged(before, OVERLAP)}")


def processes_joined(server: Server) -> bool:
    """Whether all three are in the group, and the API process has looked since."""
    metrics = server.metrics
    return all(any(f'process="{where}-0"' in name for name in metrics) for where in WHERE)


def test_each_pause_is_charged_to_the_process_that_paused(server: Callable[..., Server]) -> None:
    """Planted in one process after the other while streams wait: overlap and late rise under that role, and under no
    other; doctor, from outside, names the role and the generation. Planted while nothing waits, no stream is
    charged."""
    watched = server("--slow-gap-ms=20")
    until(lambda: processes_joined(watched))

    before = watched.metrics
    for where in WHERE:
        watched.collect(where)
    with streaming(watched):
        pass
    idle = watched.metrics
    for name in (OVERLAP, LATE):
        assert charged(idle, name) == charged(before, name), "a pause that met no stream was charged"

    for where in WHERE:
        with streaming(watched):
            before = watched.metrics
            paused = f'python_gc_duration_seconds_sum{{generation="2",process="{where}-0"}}'
            after = until_charged(watched, before, where, paused)
        length = after[paused] - before[paused]
        for name in (OVERLAP, LATE):
            rise = {each: charged(after, name)[each] - charged(before, name)[each] for each in WHERE}
            assert {each for each, seconds in rise.items() if seconds > 0} == {where}, (name, rise)
            assert rise[where] <= STREAMS * length * 1.001

    report = watched.doctor()
    assert watched.pauses_named() >= {("engine", "gc2"), ("worker", "gc2")}
    own = [line for line in report.splitlines() if "coincided with" in line and "of it in" not in line]
    assert any("generation 2" in line for line in own), report


def test_a_host_s_multiprocess_mode_of_prometheus_changes_nothing(
    server: Callable[..., Server], tmp_path: Path
) -> None:
    """PROMETHEUS_MULTIPROC_DIR set for the server: our numbers are the group's all the same, and no file of ours is in
    that directory."""
    theirs = tmp_path / "prometheus"
    theirs.mkdir()
    watched = server(PROMETHEUS_MULTIPROC_DIR=str(theirs))
    until(lambda: processes_joined(watched))
    watched.collect("engine")
    assert watched.ask("POST", "/v1/completions?max_tokens=7").count("data: ") == 8
    tokens = 'tailwatch_output_tokens_total{model_name="toy",route="/v1/completions"}'
    until(lambda: watched.metrics.get(tokens) == 7)
    assert sum(watched.metrics[name] for name in watched.metrics if name.startswith("tailwatch_internal_errors")) == 0
    assert not any("tailwatch" in path.read_bytes().decode("latin-1") for path in theirs.iterdir())


def test_it_ends_as_it_would_without_us(server: Callable[..., Server]) -> None:
    """SIGTERM: no process is left, no traceback, and the summary names all three."""
    watched = server()
    until(lambda: processes_joined(watched))
    pids = [int(path.name.split("-")[0]) for path in watched.directory.glob("*.seg")]
    assert len(pids) == 3
    report = watched.stop()
    assert "Traceback" not in report
    assert all(f"{where}-0" in report.splitlines()[-1] for where in WHERE), report
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
