"""Processes without an app serve the metrics on a port: one of a group for all, and the next when that one ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.ports import free_port
from ..support.process import Python, clean_environment
from ..support.waiting import until

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 30

ENGINE = """
import json, logging, sys
import tailwatch
logged = []
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("tailwatch").addHandler(handler)
watch = tailwatch.install(role=sys.argv[1], gc="observe")
with tailwatch.stream(model="m") as stream:
    stream.token()
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    print(json.dumps([watch.port.serving, watch.notes, logged, watch.snapshot().errors["render"]]), flush=True)
"""


@pytest.fixture
def port() -> int:
    return free_port()


class Engine(Python):
    """A process without an app, with the options from its environment."""

    def state(self) -> tuple[bool, list[str], list[str], int]:
        """Whether it serves the port, its notes, what it logged, and its errors in rendering."""
        serving, notes, warnings, errors = self.ask("?")
        return serving, notes, warnings, errors


@pytest.fixture
def start(port: int, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """start(role, code, group): a process with the port in its environment; all are gone after the test."""
    started: list[Engine] = []

    def begin(role: str = "engine", code: str = ENGINE, *, group: bool = True, **variables: str) -> Engine:
        directory = {"TAILWATCH_DIR": str(tmp_path / "group")} if group else {}
        variables = {"TAILWATCH_METRICS_PORT": str(port), "TAILWATCH_QUIET": "1", **directory, **variables}
        env = clean_environment(**variables)
        started.append(Engine(code, role, env=env))
        started[-1].read()
        return started[-1]

    yield begin
    for engine in started:
        engine.kill()


def scraped(port: int) -> str:
    """What /metrics answers; "" where nothing does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_SECONDS) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, ConnectionError):
        return ""


def tokens(text: str) -> int:
    """Of the whole group."""
    return sum(
        int(found) for found in re.findall(r"^tailwatch_output_tokens_total\{[^}]*\} (\d+)$", text, re.MULTILINE)
    )


def names(text: str) -> set[str]:
    """Processes that it lists."""
    return set(re.findall(r'process="([^"]+)"', text))


def test_the_first_of_a_group_serves_all_of_it(start: Callable[..., Engine], port: int) -> None:
    """The others wait in line: a note, no warning, no error."""
    first, *others = [start() for _ in range(3)]
    text = scraped(port)
    assert tokens(text) == 3
    assert names(text) == {"engine-0", "engine-1", "engine-2"}
    assert [engine.state()[0] for engine in (first, *others)] == [True, False, False]
    for engine in others:
        _, notes, warnings, errors = engine.state()
        assert [f"TAILWATCH_METRICS_PORT={port}: one process" in note for note in notes] == [True]
        assert (warnings, errors) == ([], 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_when_it_ends_the_next_takes_over(start: Callable[..., Engine], port: int, how: signal.Signals) -> None:
    """However it ended; what it measured stays in the answer."""
    first, *others = [start() for _ in range(3)]
    first.signal(how)
    first.popen.wait(DEADLINE_SECONDS)
    text = until(lambda: scraped(port))
    assert tokens(text) == 3
    until(lambda: sorted(engine.state()[0] for engine in others) == [False, True])
    next(engine for engine in others if engine.state()[0]).kill()
    assert tokens(until(lambda: scraped(port))) == 3


def test_another_program_on_the_port_is_reported_and_outlived(start: Callable[..., Engine], port: int) -> None:
    """It is none of the group: each process that tries reports it once, and counts it. When it goes, one takes over."""
    with socket.create_server(("127.0.0.1", port)):
        engine = start()
        serving, _, warnings, errors = engine.state()
        assert not serving and errors >= 1
        assert ["metrics are not served" in sentence for sentence in warnings] == [True]
    assert tokens(until(lambda: scraped(port))) == 1
    assert len(engine.state()[2]) == 1


def test_outside_a_group_the_port_is_tried_once(start: Callable[..., Engine], port: int) -> None:
    """No process there serves another's numbers."""
    first, second = start(group=False), start(group=False)
    assert first.state()[0] and not second.state()[0]
    assert tokens(scraped(port)) == 1
    first.kill()
    before = second.state()
    assert before[3] == 1 and ["metrics are not served" in sentence for sentence in before[2]] == [True]


def test_it_listens_on_the_loopback_address_only(start: Callable[..., Engine], port: int) -> None:
    """In /proc/net/tcp: 127.0.0.1, and no other address."""
    start()
    sockets = [
        line.split() for path in ("tcp", "tcp6") for line in Path(f"/proc/net/{path}").read_text().splitlines()[1:]
    ]
    listening = [fields[1] for fields in sockets if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


API = """
import json, sys
import tailwatch
from tailwatch.runtime import install

async def app(scope, receive, send):
    pass

install.autoinstall_process()  # a launcher, which turns out to serve an app itself
watch = tailwatch.current()
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    if watch.app is None:
        install.autoinstall_app(app)
        watch.start_daemon()
    print(json.dumps([watch.port.serving, watch.notes, [], 0]), flush=True)
"""


def test_a_process_with_an_app_hands_the_port_on(start: Callable[..., Engine], port: int) -> None:
    """A launcher took it before its app was loaded: an engine has it a moment later."""
    api = start(code=API)
    assert tokens(scraped(port)) == 0 and scraped(port)
    engine = start()
    assert not engine.state()[0]
    api.state()
    until(lambda: engine.state()[0])
    serving, notes, _, _ = api.state()
    assert not serving and any("processes without an app" in note for note in notes)
    assert tokens(scraped(port)) == 1


FORK = """
import json, os, select, sys
import tailwatch
watch = tailwatch.install(role="engine", gc="observe")
print(json.dumps(watch.membership.joined), flush=True)
child = os.fork()
if child == 0:
    closed = select.poll()
    closed.register(0, 0)  # what is written to it is for the parent
    closed.poll()
    os._exit(0)
for line in sys.stdin:
    print(json.dumps([watch.port.serving, watch.notes, [], child]), flush=True)
os._exit(0)
"""


def test_a_fork_child_takes_the_port_over_from_its_parent(start: Callable[..., Engine], port: int) -> None:
    """What the parent held is the parent's: the child waits in line like any other process of the group."""
    parent = start(code=FORK)
    serving, _, _, child = parent.state()
    assert serving
    try:
        until(lambda: len(names(scraped(port))) == 2)
        parent.popen.kill()  # its pipe stays open: the child waits for its end
        parent.popen.wait(DEADLINE_SECONDS)
        until(lambda: scraped(port))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
