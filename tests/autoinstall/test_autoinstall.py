"""Automatic installation, in real servers: their own commands and their own ways to start processes, with nothing of
ours in the code that they run."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.ports import free_port
from ..support.waiting import DEADLINE_SECONDS, until

pytestmark = pytest.mark.integration

PATH = "/v1/chat/completions"
TOKENS = 3
COUNTED = re.compile(r"^tailwatch_output_tokens_total\{[^}]*\} (\d+)$", re.MULTILINE)

APP = f"""
import os
TOKEN = b'data: {{"choices":[{{"index":0,"delta":{{"content":"x"}}}}]}}\\n\\n'

async def respond(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({{"type": message["type"] + ".complete"}})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/event-stream"), (b"x-pid", b"%d" % os.getpid())]
        await send({{"type": "http.response.start", "status": 200, "headers": headers}})
        if scope["path"].startswith("/hold"):
            open(scope["path"][1:]).read()
        for _ in range({TOKENS} if scope["method"] == "POST" else 0):
            await send({{"type": "http.response.body", "body": TOKEN, "more_body": True}})
        await send({{"type": "http.response.body", "body": b"", "more_body": False}})

class App:
    async def __call__(self, scope, receive, send):
        await respond(scope, receive, send)

app = respond
instance = App()

def factory():
    return App()
"""


def environment(**variables: str) -> dict[str, str]:
    """Ours without what would open a door, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILWATCH", "PYTHON"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **variables}


class Server:
    """A server command in a process group of its own, listening on a socket that it was given."""

    def __init__(self, command: list[str], listener: socket.socket, errors: Path, env: dict[str, str]) -> None:
        self.port: int = listener.getsockname()[1]
        self.errors = errors
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=env, stdout=file, stderr=file, pass_fds=[listener.fileno()], start_new_session=True
            )

    def ask(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own, as soon as the server accepts: status, headers, body as sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS) as connection:
            fixed = "Host: x\r\nConnection: close\r\nContent-Length: 0\r\n"
            connection.sendall(f"{method} {path} HTTP/1.1\r\n{fixed}\r\n".encode())
            self._wait_for_answer(connection)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *others = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in others)}
        return int(first.split()[1]), headers, body

    def _wait_for_answer(self, connection: socket.socket) -> None:
        """AssertionError where the server ends before: the listening socket is the test's too, and stays open."""
        with contextlib.closing(os.fdopen(os.pidfd_open(self.process.pid), "rb")) as end:
            readable, _, _ = select.select([connection, end], [], [], DEADLINE_SECONDS)
        assert connection in readable, self.output()

    def stream(self) -> str:
        """One streamed request. Returns the id of the process that answered."""
        status, headers, body = self.ask("POST", PATH)
        assert (status, body.count(b"data: ")) == (200, TOKENS), self.output()
        return headers["x-pid"]

    def counted(self) -> int | None:
        """Tokens that /metrics has in one process; None where nothing answers there for the app."""
        status, _, body = self.ask("GET", "/metrics")
        assert status == 200
        if b"tailwatch_build_info" not in body:
            return None
        return sum(int(found) for found in COUNTED.findall(body.decode()))

    @contextlib.contextmanager
    def held(self, pipe: Path) -> Iterator[Callable[[], None]]:
        """One of its processes stands still in the app, until the block ends or what it is given is called."""
        os.mkfifo(pipe)
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS) as connection:
            connection.sendall(f"GET /{pipe.name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            with pipe.open("wb") as end:  # returns when the app has opened the other one
                yield end.close
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")

    def output(self) -> str:
        """What it printed."""
        return self.errors.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and wait. Returns its status as subprocess gives it."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        """The whole process group, and what its processes would have removed from /dev/shm."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGSTOP)  # no other file is made meanwhile
        left = in_memory(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_SECONDS)
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


SEMAPHORE = re.compile(r" (/dev/shm/sem\.mp-\w+)$", re.MULTILINE)
GROUP = re.compile(rb"(?:^|\0)TAILWATCH_DIR=(/dev/shm/tailwatch-run-\w+)\0")


def in_memory(process_group: int) -> set[Path]:
    """The semaphores that processes of a group have mapped, and the directories that a launcher among them made."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == process_group:
                found.update(SEMAPHORE.findall((process / "maps").read_text()))
                found.update(os.fsdecode(name) for name in GROUP.findall((process / "environ").read_bytes()))
    return {Path(name) for name in found if Path(name).exists()}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """serve(*command, **environment): runs ``python command`` beside app.py; "{fd}" and "{port}" stand for the
    socket."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    servers: list[Server] = []
    with contextlib.ExitStack() as stack:

        def start(*command: str, python: list[str] | None = None, **variables: str) -> Server:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            named = {"fd": listener.fileno(), "port": listener.getsockname()[1]}
            full = [*(python or [sys.executable]), *(part.format(**named) for part in command)]
            errors = tmp_path / f"errors{len(servers)}"
            if "TAILWATCH" in variables:  # else they would leave a directory under /dev/shm
                variables.setdefault("TAILWATCH_DIR", str(tmp_path / "group"))
            servers.append(Server(full, listener, errors, environment(**variables)))
            return servers[-1]

        yield start
        for server in servers:
            server.kill()


UVICORN = ("-m", "uvicorn", "--fd", "{fd}")
HYPERCORN = ("-m", "hypercorn", "--bind", "fd://{fd}")
GUNICORN = ("-m", "gunicorn", "--bind", "fd://{fd}")
RUN = [sys.executable, "-m", "tailwatch", "run", "--", sys.executable]
INSTALLED = {"TAILWATCH": "1"}


def has(module: str) -> bool:
    """Whether a server can be imported here."""
    return importlib.util.find_spec(module) is not None


# ---- uvicorn ----


@pytest.mark.parametrize("app", ["app:app", "app:instance"])
def test_uvicorn_with_the_boot_file(serve: Callable[..., Server], app: str) -> None:
    """TAILWATCH=1 and the package installed: the command as it is, a function or an object."""
    server = serve(*UVICORN, app, **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS
    assert server.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in server.output()


@pytest.mark.parametrize(
    "extra", [("--no-proxy-headers",), ("--loop", "asyncio", "--http", "h11"), ("--lifespan", "off")]
)
def test_uvicorn_with_options(serve: Callable[..., Server], extra: tuple[str, ...]) -> None:
    """However the app is wrapped, whatever loop and protocol serve it."""
    server = serve(*UVICORN, *extra, "app:instance", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS


def test_uvicorn_factory(serve: Callable[..., Server]) -> None:
    """What the factory makes is watched."""
    server = serve(*UVICORN, "--factory", "app:factory", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS


@pytest.mark.parametrize("words", [{}, {"TAILWATCH": "0"}, {"TAILWATCH": "off"}])
def test_without_a_true_word_nothing_is_watched(serve: Callable[..., Server], words: dict[str, str]) -> None:
    """The app's own answer comes back from /metrics, and the log has nothing of us."""
    server = serve(*UVICORN, "app:app", **words)
    server.stream()
    assert server.counted() is None
    assert "tailwatch" not in server.output()


def test_uvicorn_workers(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Spawned workers are watched, each counts what it served; the supervisor serves nothing and is left alone."""
    server = serve(*UVICORN, "--workers", "2", "app:app", **INSTALLED)
    with server.held(tmp_path / "hold1") as release_first:
        second = server.stream()
        assert (server.counted() or 0) >= TOKENS
        with server.held(tmp_path / "hold2") as release_second:
            release_first()
            first = server.stream()
            assert (server.counted() or 0) >= TOKENS
            release_second()
    assert len({first, second, str(server.process.pid)}) == 3


def test_uvicorn_reload(serve: Callable[..., Server]) -> None:
    """The reloader's child is watched."""
    server = serve(*UVICORN, "--reload", "app:app", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS


IN_CODE = """
import sys, uvicorn
from app import App
{before}
config = {config}(App(), fd=int(sys.argv[1]))
{after}
uvicorn.Server(config).run()
"""
SUBCLASS = """
class Config(uvicorn.Config):
    def load(self):
        super().load()
        self.also = True
"""
INSTALL = "import tailwatch; app = App(); watch = tailwatch.install(app, slow_gap_ms=7)"


@pytest.mark.parametrize(
    ("before", "config", "after"),
    [
        ("", "uvicorn.Config", ""),
        (SUBCLASS, "Config", ""),
        ("", "uvicorn.Config", "config.load()"),
        ("", "uvicorn.Config", "config.load(); config.loaded = False; config.load()"),
    ],
    ids=["plain", "subclass", "loaded before", "loaded twice"],
)
def test_uvicorn_in_code(serve: Callable[..., Server], tmp_path: Path, before: str, config: str, after: str) -> None:
    """A program that builds its server itself; each token is counted once."""
    (tmp_path / "server.py").write_text(IN_CODE.format(before=before, config=config, after=after), encoding="utf-8")
    server = serve("server.py", "{fd}", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS


TWICE = """
import sys, json, uvicorn, tailwatch
from starlette.applications import Starlette
from starlette.routing import Route
from app import App, respond

middleware = []
if {middleware}:
    from starlette.middleware import Middleware
    middleware = [Middleware(tailwatch.Middleware)]

async def notes(scope, receive, send):
    watch = tailwatch.current()
    body = json.dumps([watch.config.slow_gap_ms, watch.config.role, watch.notes, watch.automatic]).encode()
    await send({{"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}})
    await send({{"type": "http.response.body", "body": body}})

class Dispatch:
    async def __call__(self, scope, receive, send):
        await (notes if scope["type"] == "http" and scope["path"] == "/notes" else respond)(scope, receive, send)

app = Starlette(middleware=middleware)
app.mount("/", Dispatch())
if {before}: tailwatch.install(app, slow_gap_ms=7)
config = uvicorn.Config(app, fd=int(sys.argv[1]), lifespan="off")
config.load()
if {after}: tailwatch.install(app, slow_gap_ms=7, metrics_path="/other")
import tailwatch_boot; tailwatch_boot.plugin()
uvicorn.Server(config).run()
"""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("middleware", [True, False])
def test_several_entries_are_one_installation(
    serve: Callable[..., Server], tmp_path: Path, before: bool, after: bool, middleware: bool
) -> None:
    """Boot file, Middleware, plugin and install() in code, in any order: each token counts once, the code's options
    win, and what came too late is noted."""
    if before and after:
        pytest.skip("two different install() in code are an error of that code")
    source = TWICE.format(before=before, after=after, middleware=middleware)
    (tmp_path / "server.py").write_text(source, encoding="utf-8")
    server = serve("server.py", "{fd}", TAILWATCH_SLOW_GAP_MS="5", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS, server.output()
    slow_gap_ms, role, notes, door = json.loads(server.ask("GET", "/notes")[2])
    assert slow_gap_ms == (7.0 if before or after else 5.0)
    assert role == "api"
    assert door is not (before or after)
    assert any("metrics_path" in note for note in notes) is after


UNINSTALLED = """
import gc, sys, uvicorn
from app import App
load, callbacks, finders = None, list(gc.callbacks), [f for f in sys.meta_path if "tailwatch" not in type(f).__module__]
config = uvicorn.Config(App(), fd=int(sys.argv[1]))
config.load()
assert "tailwatch" in sys.modules
import os, tailwatch
environ = dict(os.environ)
report = tailwatch.uninstall()
assert report == [], report
assert sys.meta_path == finders, sys.meta_path
assert uvicorn.Config.load.__code__.co_filename.endswith("config.py"), uvicorn.Config.load
assert not hasattr(uvicorn.Config.load, "__wrapped__")
assert gc.callbacks == callbacks
assert dict(os.environ) == environ
other = uvicorn.Config(App(), fd=int(sys.argv[1]))
uvicorn.Server(other).run()
"""


def test_uninstall_ends_the_automatic_installation(serve: Callable[..., Server], tmp_path: Path) -> None:
    """uvicorn is as it was, sys.meta_path and the environment too, and the next app is served unwatched."""
    (tmp_path / "server.py").write_text(UNINSTALLED, encoding="utf-8")
    server = serve("server.py", "{fd}", **INSTALLED)
    server.stream()
    assert server.counted() is None, server.output()


def test_nothing_waits_once_the_app_is_watched(serve: Callable[..., Server], tmp_path: Path) -> None:
    """No finder of ours is left in sys.meta_path of a serving process."""
    source = IN_CODE.format(before="", config="uvicorn.Config", after=(
        "config.load(); assert not [f for f in sys.meta_path if 'tailwatch' in type(f).__module__], sys.meta_path"
    ))  # fmt: skip
    (tmp_path / "server.py").write_text(source, encoding="utf-8")
    server = serve("server.py", "{fd}", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS, server.output()


# ---- what may not stop a server ----


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"TAILWATCH_SLO": "fast please"}, "TAILWATCH_SLO"),
        ({"TAILWATCH_MAX_LABEL_SETS": "many"}, "TAILWATCH_MAX_LABEL_SETS"),
        ({"TAILWATCH_GC": "out-of-bend"}, "TAILWATCH_GC"),
        ({"TAILWATCH": "enabled"}, "TAILWATCH=enabled"),
    ],
)
def test_a_bad_variable_is_logged_once(serve: Callable[..., Server], variables: dict[str, str], sentence: str) -> None:
    """The server starts and serves without us."""
    server = serve(*UVICORN, "app:app", **{**INSTALLED, **variables})
    server.stream()
    assert server.counted() is None
    assert server.output().count("tailwatch:") == 1 and sentence in server.output()
    assert "Traceback" not in server.output()


def test_a_stub_of_uvicorn_is_left_alone(tmp_path: Path) -> None:
    """A package that only has uvicorn's name runs as it would, after one sentence."""
    (tmp_path / "uvicorn").mkdir()
    (tmp_path / "uvicorn" / "__init__.py").write_text("__version__ = '0.0.stub'", encoding="utf-8")
    (tmp_path / "uvicorn" / "config.py").write_text("VALUE = 7", encoding="utf-8")
    code = "import sys; sys.path.insert(0, '.'); import uvicorn.config as c; print(c.VALUE)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(TAILWATCH="1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert done.stderr.count("tailwatch:") == 1 and "uvicorn 0.0.stub is not watched" in done.stderr


def test_a_broken_tailwatch_is_reported_once(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Another module under our name shadows us: the server starts, and logs why nothing is watched."""
    (tmp_path / "tailwatch.py").write_text("", encoding="utf-8")
    server = serve(*UVICORN, "app:app", **INSTALLED)
    server.stream()
    assert server.counted() is None
    assert server.output().count("tailwatch cannot be imported") == 1
    assert "Traceback" not in server.output()


# ---- tailwatch run ----


def test_run_with_uvicorn(serve: Callable[..., Server]) -> None:
    """The same through the launcher, with an option; its status is the server's."""
    python = [*RUN[:4], "--slow-gap-ms=5", *RUN[4:]]
    server = serve(*UVICORN, "app:app", python=python)
    pid = server.stream()
    assert server.counted() == TOKENS
    assert pid != str(server.process.pid)
    assert server.stop(signal.SIGINT) in (0, 128 + signal.SIGINT)
    assert server.output().startswith("tailwatch: watching ")


def bare_interpreter(directory: Path, *names: str) -> list[str]:
    """A virtual environment without tailwatch that has these packages, and the command that starts it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        found = origin.parent if spec.submodule_search_locations else origin
        (site / found.name).symlink_to(found)
    assert subprocess.run([directory / "bin/python", "-c", "import tailwatch"], capture_output=True).returncode == 1
    return [str(directory / "bin/python")]


UVICORN_NEEDS = ("uvicorn", "h11", "click", "typing_extensions")


def test_run_makes_tailwatch_importable(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The server's interpreter has no tailwatch: the launcher's is used, in each of its processes."""
    python = bare_interpreter(tmp_path / "bare", *UVICORN_NEEDS, "_cffi_backend")
    server = serve(*UVICORN, "--workers", "2", "app:app", python=[*RUN[:-1], *python])
    server.stream()
    assert server.counted() is not None, server.output()


def test_run_where_tailwatch_cannot_be_imported(serve: Callable[..., Server], tmp_path: Path) -> None:
    """One sentence, that tailwatch cannot be imported there, and the server serves."""
    python = bare_interpreter(tmp_path / "bare", *UVICORN_NEEDS)
    (site,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    (site / "_cffi_backend.py").write_text("raise ImportError('none for this Python')", encoding="utf-8")
    server = serve(*UVICORN, "app:app", python=[*RUN[:-1], *python])
    server.stream()
    assert server.counted() is None
    (sentence,) = [line for line in server.output().splitlines() if "cannot be imported" in line]
    assert sentence.startswith("tailwatch: tailwatch cannot be imported ") and "none for this Python" in sentence
    assert "Traceback" not in server.output()


# ---- the other servers ----


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "trio"])
def test_hypercorn(serve: Callable[..., Server], workers: str, kind: str) -> None:
    """Its command, in one spawned worker or in two, on each of its loops that is there."""
    if not has(kind):
        pytest.skip(f"{kind} is not installed: pip install {kind}")
    server = serve(*HYPERCORN, "--workers", workers, "--worker-class", kind, "app:app", **INSTALLED)
    server.stream()
    assert server.counted() is not None, server.output()
    assert "Traceback" not in server.output()


HYPERCORN_IN_CODE = """
import asyncio, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
from app import App
config = Config()
config.bind = ["fd://" + sys.argv[1]]
asyncio.run(serve(App(), config))
"""


def test_hypercorn_in_code(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Its serve() function."""
    (tmp_path / "server.py").write_text(HYPERCORN_IN_CODE, encoding="utf-8")
    server = serve("server.py", "{fd}", **INSTALLED)
    server.stream()
    assert server.counted() == TOKENS, server.output()


@pytest.mark.skipif(not has("gunicorn"), reason="gunicorn is not installed: pip install gunicorn")
@pytest.mark.parametrize("worker", ["uvicorn_worker.UvicornWorker", "asgi"])
def test_gunicorn(serve: Callable[..., Server], worker: str) -> None:
    """Forked workers: uvicorn's, and its own for ASGI where the version has it."""
    module = worker.partition(".")[0] if "." in worker else "gunicorn.workers.gasgi"
    if not has(module):
        pytest.skip(f"{module} is not installed: pip install -U gunicorn uvicorn-worker")
    server = serve(*GUNICORN, "--workers", "2", "--worker-class", worker, "app:app", **INSTALLED)
    server.stream()
    assert server.counted() is not None, server.output()
    assert "Traceback" not in server.output()


@pytest.mark.skipif(not has("granian"), reason="granian is not installed: pip install granian")
@pytest.mark.parametrize("interface", ["asgi", "asginl"])
def test_granian(serve: Callable[..., Server], interface: str) -> None:
    """Its worker process, with the lifespan protocol and without; it binds a port of its own."""
    port = free_port()
    server = serve("-m", "granian", "--port", str(port), "--interface", interface, "app:app", **INSTALLED)
    server.port = port
    until(lambda: listens(server))
    server.stream()
    assert server.counted() == TOKENS, server.output()


@pytest.mark.skipif(not has("daphne"), reason="daphne is not installed: pip install daphne")
def test_daphne(serve: Callable[..., Server]) -> None:
    """It binds a port of its own."""
    port = free_port()
    server = serve("-m", "daphne", "-p", str(port), "app:app", **INSTALLED)
    server.port = port
    until(lambda: listens(server))
    server.stream()
    assert server.counted() == TOKENS, server.output()


def listens(server: Server) -> bool:
    """Whether something does on the server's port; AssertionError where its process has ended."""
    assert server.process.poll() is None, server.output()
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", server.port)):
        return True
    return False


# ---- processes without an app ----

ENGINE = """
import json, multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor

def what_it_is(tag):
    module = sys.modules.get("tailwatch.runtime.install")
    watch = getattr(module, "_current", None)
    return [tag, None if watch is None else [watch.config.role, watch.config.gc, watch.gc.verify(), watch.core.opened]]

def send(tag, pipe):
    pipe.send(what_it_is(tag))

def nested(tag, pipe):
    send(tag, pipe)
    child = multiprocessing.get_context("fork").Process(target=send, args=("grandchild", pipe), name="VllmWorker-0")
    child.start()
    child.join()

class OwnRun(multiprocessing.get_context("spawn").Process):
    def __init__(self, pipe):
        super().__init__(name="ApiServer_0")
        self.pipe = pipe
    def run(self):
        send("own run", self.pipe)

if __name__ == "__main__":
    if "installed" in sys.argv:
        import tailwatch
        tailwatch.install(gc="observe")
    ours, theirs = multiprocessing.Pipe()
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        for name in ("EngineCore_DP0", None):
            child = context.Process(target=nested if name else send, args=(f"{method} {name}", theirs), name=name)
            child.start()
            child.join()
    child = OwnRun(theirs)
    child.start()
    child.join()
    received = []
    while ours.poll():
        received.append(ours.recv())
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        received.append(pool.submit(what_it_is, "pool").result())
    received.append(what_it_is("main"))
    print(json.dumps(received))
"""


def printed(tmp_path: Path, source: str, *arguments: str, **variables: str) -> list[Any]:
    """What a program prints as JSON; it prints nothing else."""
    (tmp_path / "engine.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "engine.py", *arguments],
        env=environment(**{"TAILWATCH_DIR": str(tmp_path / "group"), "TAILWATCH_QUIET": "1", **variables}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: list[Any] = json.loads(done.stdout)
    return found


def test_children_are_watched_by_what_they_are(tmp_path: Path) -> None:
    """Spawned, forked, forked by a fork server, nested: each has its hook and its role; helpers and pools have not."""
    engine, worker, api = (["engine", "auto", True, 0], ["worker", "auto", True, 0], ["api", "auto", True, 0])
    expected: list[Any] = []
    for method in ("spawn", "fork", "forkserver"):
        expected += [[f"{method} EngineCore_DP0", engine], ["grandchild", worker], [f"{method} None", worker]]
    expected += [["own run", api], ["pool", None], ["main", None]]
    assert printed(tmp_path, ENGINE, TAILWATCH="1") == expected


def test_without_the_variable_children_are_left_alone(tmp_path: Path) -> None:
    """Not one of them."""
    assert {repr(watch) for _, watch in printed(tmp_path, ENGINE)} == {"None"}


def test_a_forked_child_keeps_the_options_of_its_parent(tmp_path: Path) -> None:
    """What was installed in code before the fork stays; only the role is the child's own."""
    found = dict(printed(tmp_path, ENGINE, "installed", TAILWATCH="1"))
    assert found["fork EngineCore_DP0"] == ["engine", "observe", True, 0]
    assert found["spawn EngineCore_DP0"] == ["engine", "auto", True, 0]
    assert found["main"][0] == "worker"


LATE_TITLE = """
import json, multiprocessing, sys, time
import setproctitle

def run(pipe):
    import tailwatch
    watch = tailwatch.current()
    first = watch.config.role
    setproctitle.setproctitle("sglang::scheduler_TP0")
    deadline = time.monotonic() + 30
    while watch.config.role == first and time.monotonic() < deadline:
        time.sleep(0.01)
    pipe.send([first, watch.config.role, watch.snapshot().processes[0].role])

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=run, args=(theirs,))
    child.start()
    child.join()
    print(json.dumps(ours.recv() if ours.poll() else None))
"""


@pytest.mark.skipif(not has("setproctitle"), reason="setproctitle is not installed: pip install setproctitle")
def test_a_title_that_comes_late_is_seen(tmp_path: Path) -> None:
    """A worker becomes an engine when it calls itself one."""
    assert printed(tmp_path, LATE_TITLE, TAILWATCH="1") == ["worker", "engine", "engine"]


EXEC = """
import json, subprocess, sys
if "child" in sys.argv:
    sys.path.insert(0, ".")
    import zmq
    watch = getattr(sys.modules.get("tailwatch.runtime.install"), "_current", None)
    print(json.dumps(watch and [watch.config.role, watch.gc.verify()]))
else:
    child = subprocess.run([sys.executable, sys.argv[0], "child"], capture_output=True, text=True, check=True)
    probe = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, '.'); import zmq; "
        "print('tailwatch' in sys.modules)"], capture_output=True, text=True, check=True)
    print(json.dumps([json.loads(child.stdout), probe.stdout]))
"""


def test_an_executed_engine_is_seen_by_what_it_imports(tmp_path: Path) -> None:
    """A command of its own that talks to an engine is watched; a probe with -c that imports the same is not."""
    (tmp_path / "zmq.py").write_text("", encoding="utf-8")
    assert printed(tmp_path, EXEC, TAILWATCH="1") == [["main", True], "False\n"]


PLUGIN = """
import json, multiprocessing, sys
def run(pipe):
    before = "tailwatch" in sys.modules
    import importlib.metadata as metadata
    (point,) = metadata.entry_points(group="vllm.general_plugins", name="tailwatch")
    point.load()()
    point.load()()
    watch = getattr(sys.modules.get("tailwatch.runtime.install"), "_current", None)
    pipe.send([before, watch and watch.config.role])

if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    for method in ("spawn", "fork"):
        child = multiprocessing.get_context(method).Process(target=run, args=(theirs,), name="EngineCore")
        child.start()
        child.join()
    run(theirs)
    print(json.dumps([ours.recv() for _ in range(3)]))
"""


def test_the_plugin_watches_children_of_a_server(tmp_path: Path) -> None:
    """vLLM and SGLang call it in each process: twice is once, and in the one that a command began it waits."""
    assert printed(tmp_path, PLUGIN, TAILWATCH="1") == [[True, "engine"], [True, "engine"], [False, None]]
    assert printed(tmp_path, PLUGIN) == [[False, None]] * 3


def test_a_bad_variable_leaves_children_alone(tmp_path: Path) -> None:
    """Each reports it once, and does its work."""
    (tmp_path / "engine.py").write_text(PLUGIN, encoding="utf-8")
    variables = environment(TAILWATCH="1", TAILWATCH_GC="sometimes")
    done = subprocess.run(
        [sys.executable, "engine.py"], env=variables, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert json.loads(done.stdout) == [[True, None], [True, None], [False, None]]
    assert done.stderr.count("tailwatch: gc='sometimes'") == 2 and "Traceback" not in done.stderr
