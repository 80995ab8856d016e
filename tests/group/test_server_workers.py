"""install(app) in the code that each worker of a server runs: the workers are a group without a directory's name."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.group import server_workers, temp_dirs
from tailwatch.runtime import session

from ..support.ports import free_port
from ..support.process import Process, Script, clean_environment
from ..support.waiting import DEADLINE_SECONDS, until

TOKENS = 3
REQUESTS = 24
FINISHED = re.compile(r"^tailwatch_requests_total\{[^}]*\} (\d+)$", re.MULTILINE)

APP = f"""
import json, os, tailwatch

TOKEN = b'data: {{"choices":[{{"index":0,"delta":{{"content":"x"}}}}]}}\\n\\n'

class App:
    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({{"type": message["type"] + ".complete"}})
                if message["type"] == "lifespan.shutdown":
                    return
        watch = tailwatch.current()
        about = [os.getpid(), os.getppid(), watch.membership.directory, watch.snapshot().errors["group"], watch.notes]
        parts = [json.dumps(about).encode()] if scope["method"] == "GET" else [TOKEN] * {TOKENS}
        kind = b"application/json" if scope["method"] == "GET" else b"text/event-stream"
        await send({{"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}})
        for part in parts:
            await send({{"type": "http.response.body", "body": part, "more_body": True}})
        await send({{"type": "http.response.body", "body": b"", "more_body": False}})

app = App()
tailwatch.install(app, gc="off", OPTIONS)
"""


class Server(Process):
    """A server command in a process group of its own. "{fd}" and "{port}" in it stand for where it listens."""

    def __init__(self, directory: Path, *command: str, **variables: str) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        own_port = "{port}" in command
        self.port: int = free_port() if own_port else listener.getsockname()[1]
        self.log = directory / f"log-{self.port}"
        named = {"fd": listener.fileno(), "port": self.port}
        with listener, self.log.open("wb") as file:
            super().__init__(
                sys.executable,
                *(part.format(**named) for part in command),
                env=clean_environment(PYTHONPATH=str(directory), **variables),
                stderr=file.fileno(),
                start_new_session=True,
                pass_fds=[listener.fileno()],
            )
        if own_port:
            until(self.listens, "the server listens")

    def listens(self) -> bool:
        """Whether it does."""
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        assert self.running, self.log.read_text()
        return False

    def ask(self, method: str, path: str) -> str:  # type: ignore[override]
        """One request on a connection of its own. The body of the answer, as sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS) as connection:
            connection.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        head, _, body = answer.partition("\r\n\r\n")
        assert " 200 " in head.partition("\r\n")[0], (answer, self.log.read_text())
        return body

    def stream(self) -> None:
        """One streamed request."""
        assert self.ask("POST", "/v1/chat/completions").count("data: ") == TOKENS

    def scrape(self) -> int:
        """Requests that /metrics counts, of whichever worker answers."""
        return sum(map(int, FINISHED.findall(self.ask("GET", "/metrics"))))

    def about(self) -> SimpleNamespace:
        """What a worker is, whichever answers."""
        (line,) = re.findall(r"^\[.*\]", self.ask("GET", "/about"), re.MULTILINE)
        pid, parent, directory, errors, notes = json.loads(line)
        return SimpleNamespace(pid=pid, parent=parent, directory=directory, errors=errors, notes=notes)

    def workers(self, count: int) -> list[SimpleNamespace]:
        """All of them."""
        found: dict[int, SimpleNamespace] = {}

        def all_found() -> bool:
            one = self.about()
            found[one.pid] = one
            return len(found) == count

        until(all_found, f"{count} workers answer")
        return list(found.values())

    def stop(self) -> None:
        """Ends the master and its workers, and removes what they shared."""
        directories = {self.about().directory} if self.running else set()
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(DEADLINE_SECONDS / 2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()
        for directory in directories - {""}:
            until(lambda path=directory: not os.path.exists(path) or temp_dirs.remove(path))  # type: ignore[misc]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """serve(*command, options=..., **environment): a server of app.py, which installs tailwatch with these options."""
    with contextlib.ExitStack() as stack:

        def start(*command: str, options: str = "", **variables: str) -> Server:
            (tmp_path / "app.py").write_text(APP.replace("OPTIONS", options), encoding="utf-8")
            server = Server(tmp_path, *command, **variables)
            stack.callback(server.stop)
            return server

        yield start


def has(module: str) -> bool:
    """Whether a server can be imported here."""
    return importlib.util.find_spec(module) is not None


def check_sums(server: Server) -> None:
    """Each scrape counts every request that has ended, whichever worker served it, and whichever is asked."""
    before = 0
    for sent in range(1, REQUESTS + 1):
        server.stream()
        seen = until(lambda wanted=sent: max(server.scrape() - wanted + 1, 0), "the request is counted")  # type: ignore[misc]
        assert seen == 1
        now = server.scrape()
        assert (now, now >= before) == (sent, True)
        before = now


UVICORN = ("-m", "uvicorn", "--no-access-log", "--fd", "{fd}")  # the log would fill its pipe
COMMANDS = {
    "uvicorn": (*UVICORN, "--workers", "4", "app:app"),
    "hypercorn": ("-m", "hypercorn", "--bind", "fd://{fd}", "--workers", "4", "app:app"),
    "granian": ("-m", "granian", "--interface", "asgi", "--port", "{port}", "--workers", "4", "app:app"),
    "gunicorn": ("-m", "gunicorn", "--bind", "fd://{fd}", "-w", "4", "-k", "uvicorn.workers.UvicornWorker", "app:app"),
    "gunicorn asgi": ("-m", "gunicorn", "--bind", "fd://{fd}", "-w", "4", "-k", "asgi", "app:app"),
}
COMMANDS["gunicorn preload"] = (*COMMANDS["gunicorn"], "--preload")
COMMANDS["gunicorn asgi preload"] = (*COMMANDS["gunicorn asgi"], "--preload")


@pytest.mark.integration
@pytest.mark.parametrize("name", COMMANDS)
def test_four_workers_give_one_answer(serve: Callable[..., Server], name: str) -> None:
    """Three scrapes of 40 requests were 9, 14 and 10."""
    module = name.split()[0]
    if not has(module):
        pytest.skip(f"{module} is not installed: pip install {module}")
    if "asgi" in name and not has("gunicorn.workers.gasgi"):
        pytest.skip("this gunicorn has no worker for ASGI: pip install -U gunicorn")
    server = serve(*COMMANDS[name], PYTHONWARNINGS="ignore")
    workers = server.workers(4)
    (directory,) = {one.directory for one in workers}
    assert directory.startswith(f"{temp_dirs.IN_MEMORY}/{temp_dirs.PREFIX}")
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert {one.parent for one in workers} == {server.pid}
    assert {(one.errors, *one.notes) for one in workers} == {(0,)}
    check_sums(server)


@pytest.mark.integration
def test_a_restarted_worker_comes_back_to_its_group(serve: Callable[..., Server]) -> None:
    """What a killed worker counted stays, also where all are killed; the directory is in use while the master lives."""
    server = serve(*UVICORN, "--workers", "2", "app:app")
    first = server.workers(2)
    for _ in range(8):
        server.stream()
    until(lambda: server.scrape() == 8, "all are counted")
    server.signal(signal.SIGSTOP)
    for one in first:
        os.kill(one.pid, signal.SIGKILL)
    until(lambda: all(ended(one.pid) for one in first), "both have ended")
    assert not temp_dirs._is_left(first[0].directory)
    server.signal(signal.SIGCONT)
    second = until(lambda: answered(server, 2), "two others have started")
    assert {one.directory for one in second} == {first[0].directory}
    assert not {one.pid for one in second} & {one.pid for one in first}
    assert server.scrape() == 8


def ended(pid: int) -> bool:
    """Whether a process is dead, though its parent may not have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def answered(server: Server, count: int) -> list[SimpleNamespace]:
    """Its workers, once they answer; connections that a killed worker had accepted are reset."""
    with contextlib.suppress(ConnectionError, AssertionError):
        return server.workers(count)
    return []


@pytest.mark.integration
def test_reload_stays_one_group(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The child of a reloader is replaced; its successor counts on."""
    server = serve(*UVICORN, "--reload", "--reload-dir", str(tmp_path), "app:app")
    server.stream()
    first = server.about()
    until(lambda: server.scrape() == 1, "it is counted")
    changes = itertools.count()

    def reloaded() -> SimpleNamespace | None:
        (tmp_path / f"changed_{next(changes)}.py").touch()  # the reloader may not have watched yet as the last one came
        with contextlib.suppress(AssertionError, OSError):
            until(lambda: server.about().pid != first.pid, seconds=5)
            return server.about()
        return None

    second = until(reloaded, "it was reloaded")
    assert second.directory == first.directory != ""
    server.stream()
    until(lambda: server.scrape() == 2, "both are counted")


@pytest.mark.integration
def test_two_servers_of_one_supervisor_stay_apart(serve: Callable[..., Server]) -> None:
    """This process is the parent of both; and a master that is started again has another group."""
    servers = [serve(*UVICORN, "--workers", "2", "app:app") for _ in range(2)]
    directories = {one.directory for server in servers for one in server.workers(2)}
    assert len(directories) == 2 and "" not in directories
    servers[0].stream()
    until(lambda: servers[0].scrape() == 1, "it is counted")
    assert servers[1].scrape() == 0


@pytest.mark.integration
def test_an_empty_dir_turns_it_off(serve: Callable[..., Server]) -> None:
    """Each worker is alone, and reports it."""
    for options, variables in (('dir=""', {}), ("", {"TAILWATCH_DIR": ""})):
        workers = serve(*UVICORN, "--workers", "2", "app:app", options=options, **variables).workers(2)
        assert [one.directory for one in workers] == ["", ""]
        assert all("this process alone" in note for one in workers for note in one.notes)


SCRIPT = """
import sys, uvicorn
from app import app  # noqa: F401: installs in the master, and in each worker's copy of this script
if __name__ == "__main__":
    uvicorn.run("app:app", fd=int(sys.argv[1]), workers=2)
"""


@pytest.mark.integration
def test_a_script_that_is_its_workers_main_module(serve: Callable[..., Server], tmp_path: Path) -> None:
    """A spawned worker imports the main script, and so installs, before it has been given its work."""
    (tmp_path / "server.py").write_text(SCRIPT, encoding="utf-8")
    server = serve(str(tmp_path / "server.py"), "{fd}")
    assert len({one.directory for one in server.workers(2)} - {""}) == 1
    for _ in range(6):
        server.stream()
    until(lambda: server.scrape() == 6, "all are counted")


@pytest.mark.integration
def test_an_unused_directory_is_removed(serve: Callable[..., Server]) -> None:
    """While the server runs it is not left; once its master has ended it is."""
    server = serve(*UVICORN, "--workers", "2", "app:app")
    directory = server.workers(2)[0].directory
    assert not temp_dirs._is_left(directory)
    server.signal(signal.SIGTERM)
    server.popen.wait(DEADLINE_SECONDS)
    until(lambda: temp_dirs._is_left(directory), "no process is left")
    temp_dirs.remove(directory)
    assert not os.path.exists(directory)


NO_WORKERS = """
import json, multiprocessing, os
import tailwatch
from uvicorn import Config
from uvicorn._subprocess import subprocess_started

def child(pipe):
    watch = tailwatch.install(gc="off")
    pipe.send([watch.config.dir, watch.membership.joined])

def fork(pipe):
    if os.fork() == 0:
        child(pipe)
        os._exit(0)
    os.wait()

def serving(pipe):
    subprocess_started(Config(None, log_config=None), lambda sockets: child(pipe), [], None)

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    for method in ("spawn", "fork"):
        for target in (child, serving):
            process = multiprocessing.get_context(method).Process(target=target, args=(theirs,))
            process.start()
            process.join()
    arguments = Config(None, log_config=None), lambda sockets: fork(theirs), [], None
    process = multiprocessing.get_context("fork").Process(target=subprocess_started, args=arguments)
    process.start()
    process.join()
    child(theirs)
    print(json.dumps([ours.recv() for _ in range(6)]))
"""


def test_other_processes_stay_alone(tmp_path: Path) -> None:
    """Children of a script that are no server's workers, a worker's child, and the script itself."""
    (tmp_path / "script.py").write_text(NO_WORKERS, encoding="utf-8")
    with Script(tmp_path / "script.py", env=clean_environment()) as script:
        assert script.read() == [["", False]] * 6


TWO_SERVERS = """
import multiprocessing, sys, uvicorn
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for port in map(int, sys.argv[1:]):
        context.Process(target=uvicorn.run, args=("app:app",), kwargs={"port": port}).start()
"""


@pytest.mark.integration
def test_servers_that_a_script_starts_in_processes_are_not_workers(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """uvicorn.run as the work of a process: it is a server of its own, whatever its parent starts beside it."""
    (tmp_path / "servers.py").write_text(TWO_SERVERS, encoding="utf-8")
    other = free_port()
    server = serve(str(tmp_path / "servers.py"), "{port}", str(other))
    first = server.about()
    server.port = other
    until(server.listens, "the other listens")
    second = server.about()
    assert first.parent == second.parent == server.pid
    assert (first.directory, second.directory) == ("", "")


def as_worker(monkeypatch: pytest.MonkeyPatch, parent: int) -> None:
    """This process seems to be uvicorn's worker, started by that process."""
    target = SimpleNamespace(__module__="uvicorn._subprocess")
    monkeypatch.setattr(server_workers, "current_process", lambda: SimpleNamespace(_target=target))
    monkeypatch.setattr(server_workers, "parent_process", lambda: SimpleNamespace(pid=parent))


def test_only_a_parent_that_started_it_is_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, one that adopted it, and process 1 are none."""
    as_worker(monkeypatch, os.getppid())
    master = server_workers._master()
    assert master is not None and master.pid == os.getppid()
    as_worker(monkeypatch, os.getpid())
    assert server_workers._master() is None
    as_worker(monkeypatch, 1)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert server_workers._master() is None


def test_each_master_has_a_directory_of_its_own() -> None:
    """The same pid at another time, or in another namespace, is another process."""
    masters = [server_workers.Master(*each) for each in ((7, 1, 1), (7, 2, 1), (7, 1, 2), (8, 1, 1))]
    names = {master.directory for master in masters}
    assert len(names) == 4 and masters[0].directory in names
    assert all(temp_dirs._MADE.fullmatch(os.path.basename(name)) for name in names)


def test_a_directory_that_cannot_be_shared_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file was put there: the process is alone, one error is counted, and the doctor has the reason."""
    (tmp_path / "taken").write_text("", encoding="utf-8")
    monkeypatch.setattr(session.server_workers, "directory", lambda: str(tmp_path / "taken"))
    watch = tailwatch.install(gc="off")
    try:
        assert (watch.membership.joined, watch.snapshot().errors["group"]) == (False, 1)
        assert len(watch.notes) == 1 and str(tmp_path / "taken") in watch.notes[0]
        assert watch.notes[0] in caplog.text
    finally:
        tailwatch.uninstall()


def test_it_is_not_left_to_other_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker's environment does not name its group: what the worker starts may be another server."""
    monkeypatch.setattr(session.server_workers, "directory", lambda: str(tmp_path / "group"))
    watch = tailwatch.install(gc="off")
    try:
        assert watch.membership.joined and "TAILWATCH_DIR" not in os.environ
    finally:
        assert tailwatch.uninstall() == []


def test_a_late_member_brings_what_it_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that finds out when it begins to serve that it is a worker."""
    watch = tailwatch.install(gc="off")
    try:
        assert not watch.membership.joined
        monkeypatch.setattr(session.server_workers, "directory", lambda: str(tmp_path / "group"))
        with tailwatch.stream() as stream:
            stream.token()
        assert watch.membership.joined is False  # the daemon ran before: it joins with the app's start-up
        watch._on_startup()
        found: Any = watch.snapshot()
        assert (watch.membership.joined, found.tokens, len(found.processes)) == (True, 1, 1)
    finally:
        assert tailwatch.uninstall() == []
