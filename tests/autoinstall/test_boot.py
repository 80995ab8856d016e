"""The boot package: what it costs where it is not asked for, how it waits for imports, and which processes it takes."""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tailwatch_boot
from tailwatch import _hot
from tailwatch.group.membership import GroupMember
from tailwatch.integrations import process_ranks, process_roles
from tailwatch_boot import asgi_servers, processes
from tailwatch_boot.autoinstall import Autoinstall
from tailwatch_boot.import_hooks import ImportHooks, _NotifyingLoader, without
from tailwatch_boot.launcher_imports import launcher_importable

BOOT = Path(tailwatch_boot.__file__).parent


def environment(**variables: str) -> dict[str, str]:
    """Ours without what would open a door, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TAILWATCH", "PYTHON"))}
    return {**kept, **variables}


def modules(*arguments: str, **variables: str) -> set[str]:
    """What an interpreter has imported when it is ready, and whether its list of finders is the usual one."""
    code = "import sys; print(*sys.modules, *('FINDER' for f in sys.meta_path if 'tailwatch' in type(f).__module__))"
    command = [sys.executable, *arguments, "-c", code]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


# ---- when it is not asked for ----


def test_without_the_variable_nothing_is_imported() -> None:
    """The .pth line looks at the environment and stops there."""
    assert not {name for name in modules() if "tailwatch" in name}


@pytest.mark.parametrize("word", ["0", "false", "OFF", "no", " "])
def test_a_false_word_imports_one_small_module(word: str) -> None:
    """TAILWATCH=0 costs the package that reads it, and nothing else."""
    assert modules(TAILWATCH=word) - modules() <= {"tailwatch_boot"}


@pytest.mark.parametrize("arguments", [(), ("-I",), ("-E",), ("-B", "-O")])
def test_a_true_word_begins_it(arguments: tuple[str, ...]) -> None:
    """In each kind of interpreter that reads .pth files; tailwatch itself is not imported yet."""
    loaded = modules(*arguments, TAILWATCH="1")
    assert {"FINDER", "tailwatch_boot.autoinstall"} <= loaded
    assert not {name for name in loaded if name == "tailwatch" or name.startswith("tailwatch.")}


@pytest.mark.parametrize("arguments", [(), ("-I",)])
def test_a_true_word_imports_little(arguments: tuple[str, ...]) -> None:
    """Each Python that a server starts pays for it, so that it needs nothing that is not there already."""
    added = modules(*arguments, TAILWATCH="1") - modules(*arguments) - {"FINDER"}
    assert {name for name in added if name.partition(".")[0] != "tailwatch_boot"} <= {"__future__"}
    assert len(added) <= 7


def damaged(directory: Path, damage: Callable[[Path], object]) -> Path:
    """A site-packages directory with a copy of the installed package in which something has gone wrong."""
    site = Path(tailwatch_boot.__file__).parents[1]
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("tailwatch", "tailwatch_boot"):
        shutil.copytree(site / name, directory / name, ignore=ignore)
    shutil.copy(site / "tailwatch.pth", directory)
    damage(directory)
    return directory


def _overwrite(pattern: str, text: str) -> Callable[[Path], object]:
    def damage(directory: Path) -> None:
        found = sorted(directory.glob(pattern))
        assert found
        for path in found:
            path.write_text(text, encoding="utf-8")

    return damage


SERVER = """
import asyncio, site, sys
site.addsitedir(sys.argv[1])  # as an interpreter does with its site-packages while it starts
sys.path += sys.argv[2:]
from uvicorn import Config
async def app(scope, receive, send): ...
config = Config(app)
config.load()
print("serves", config.loaded_app is not None)
"""


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda site: shutil.rmtree(site / "tailwatch_boot"), id="no boot package"),
        pytest.param(_overwrite("tailwatch_boot/__init__.py", "def ("), id="syntax error at boot"),
        pytest.param(_overwrite("tailwatch_boot/autoinstall.py", "1 / 0"), id="autoinstall raises"),
        pytest.param(lambda site: (site / "tailwatch_boot" / "import_hooks.py").unlink(), id="a file of it is missing"),
        pytest.param(lambda site: shutil.rmtree(site / "tailwatch"), id="no package"),
        pytest.param(_overwrite("tailwatch/__init__.py", "raise SystemError"), id="the package raises"),
        pytest.param(_overwrite("tailwatch/_hot*.so", ""), id="an empty extension"),
        pytest.param(_overwrite("tailwatch/runtime/install.py", ""), id="an empty module"),
    ],
)
def test_a_broken_installation_stops_no_python(damage: Callable[[Path], object], tmp_path: Path) -> None:
    """Whatever has become of our files, the interpreter starts and the server in it serves."""
    site = damaged(tmp_path, damage)
    kept = [path for path in sys.path if path.endswith("site-packages")]
    command = [sys.executable, "-S", "-c", SERVER, str(site), *kept]
    done = subprocess.run(command, env=environment(TAILWATCH="1"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "serves True\n"), done.stderr


def test_without_site_there_is_no_door() -> None:
    """python -S reads no .pth file: documented, and harmless."""
    assert not {name for name in modules("-S", TAILWATCH="1") if "tailwatch" in name}


def test_the_boot_needs_the_standard_library_alone() -> None:
    """It runs in interpreters that have nothing else; tailwatch is imported late, in two places."""
    ours = {"tailwatch_boot", "tailwatch"}
    for path in BOOT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | ours | {"__future__"}, (path, name)
                assert name.partition(".")[0] != "tailwatch" or path.name in ("autoinstall.py", "console.py"), path


# ---- waiting for an import ----


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """package(name=source, ...): modules that can be imported until the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    made: list[str] = []

    def make(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
            made.append(name)
        importlib.invalidate_caches()

    yield make
    for name in made:
        sys.modules.pop(name, None)
    assert sys.meta_path == before


def waiting_for(*names: str) -> tuple[ImportHooks, list[ModuleType]]:
    """A finder that waits for modules, and those it has reported."""
    imported: list[ModuleType] = []
    waiting = ImportHooks(dict.fromkeys(names, imported.append))
    waiting.start()
    return waiting, imported


def test_an_import_is_reported_once_and_leaves_no_trace(package: Callable[..., None]) -> None:
    """Loader, spec, source and pickling are those of an import without us; then the finder is gone."""
    package(tw_awaited="class Config: pass\ndef later(): return Config()\nseen = (__spec__.loader, __loader__)\n")
    _, imported = waiting_for("tw_awaited")
    module: Any = importlib.import_module("tw_awaited")
    assert imported == [module]
    for loader in (module.__loader__, module.__spec__.loader, *module.seen):
        assert type(loader) is importlib.machinery.SourceFileLoader
    assert module.__spec__ == importlib.util.spec_from_file_location("tw_awaited", module.__file__)
    assert "def later" in inspect.getsource(module.later)
    assert isinstance(pickle.loads(pickle.dumps(module.later())), module.Config)
    assert importlib.reload(module) is module
    assert imported == [module]


def test_only_what_is_awaited_is_touched(package: Callable[..., None]) -> None:
    """Other modules are found by the other finders, and a call for a spec alone gets a true one."""
    package(tw_other="", tw_awaited="")
    waiting, imported = waiting_for("tw_awaited")
    try:
        importlib.import_module("tw_other")
        spec = importlib.util.find_spec("tw_awaited")
        assert spec is not None and spec.origin is not None and spec.origin.endswith("tw_awaited.py")
        assert spec.loader is not None and spec.loader.get_source("tw_awaited") == ""  # type: ignore[attr-defined]
        assert imported == []
        importlib.import_module("tw_awaited")
        assert [module.__name__ for module in imported] == ["tw_awaited"]
    finally:
        waiting.forget()


def test_an_import_that_fails_may_succeed_later(package: Callable[..., None]) -> None:
    """The error is the host's own, and the wait goes on."""
    package(tw_awaited="import sys\nif not hasattr(sys, '_tw_ready'): raise RuntimeError('not yet')\n")
    waiting, imported = waiting_for("tw_awaited")
    try:
        with pytest.raises(RuntimeError, match="not yet"):
            importlib.import_module("tw_awaited")
        assert imported == [] and "tw_awaited" not in sys.modules and waiting.names == ("tw_awaited",)
        sys._tw_ready = True  # type: ignore[attr-defined]
        importlib.import_module("tw_awaited")
        assert len(imported) == 1
    finally:
        del sys._tw_ready  # type: ignore[attr-defined]
        waiting.forget()


def test_what_is_there_already_is_reported_at_once(package: Callable[..., None]) -> None:
    """A plugin may begins the automatic installation late."""
    package(tw_awaited="")
    module = importlib.import_module("tw_awaited")
    _, imported = waiting_for("tw_awaited")
    assert imported == [module]


def test_a_missing_module_is_missing(package: Callable[..., None]) -> None:
    """No finder has it: ModuleNotFoundError, as ever."""
    waiting, _ = waiting_for("tw_nowhere")
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("tw_nowhere")
    finally:
        waiting.forget()


def test_a_spec_that_waits_is_copied_and_compared_as_any_other(package: Callable[..., None]) -> None:
    """A copy, deep or not, or one that was pickled, has the loader itself; equal specs are equal."""
    package(tw_awaited="")
    plain = importlib.util.find_spec("tw_awaited")
    waiting, _ = waiting_for("tw_awaited")
    try:
        spec, again = importlib.util.find_spec("tw_awaited"), importlib.util.find_spec("tw_awaited")
        assert spec is not None and plain is not None and type(spec.loader) is not type(plain.loader)
        for copied in (copy.copy(spec.loader), copy.deepcopy(spec).loader, pickle.loads(pickle.dumps(spec.loader))):
            assert type(copied) is importlib.machinery.SourceFileLoader and copied == plain.loader
        assert spec == again and spec == plain and spec != importlib.util.find_spec("json")
        assert hash(spec.loader) == hash(plain.loader)
    finally:
        waiting.forget()


def test_a_half_made_loader_names_what_it_lacks() -> None:
    """Made without a call, as by copying, it has an AttributeError for what is not there yet."""
    half = object.__new__(_NotifyingLoader)
    for name in ("_loader", "_waiting", "__setstate__", "path"):
        with pytest.raises(AttributeError, match=name if name == "__setstate__" else None):
            getattr(half, name)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an exception that is raised again keeps its traceback there")
@pytest.mark.parametrize("source", ["raise ValueError('theirs')", "import tw_nowhere", "raise SystemExit(3)", "1 +"])
def test_a_failed_import_shows_no_frame_of_ours(package: Callable[..., None], source: str) -> None:
    """The traceback is that of an import without us."""
    package(tw_awaited=source)

    def frames() -> list[tuple[str, int | None]]:
        try:
            importlib.import_module("tw_awaited")
        except BaseException as error:
            return [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        pytest.fail("it was imported")

    without_us = frames()
    waiting, _ = waiting_for("tw_awaited")
    try:
        assert [frame[0] for frame in frames()] == [frame[0] for frame in without_us]
    finally:
        waiting.forget()


class Hook(importlib.abc.MetaPathFinder):
    """Another package's import hook: it wraps what the finders behind it find, as tracing tools do."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Asks the others, and notes what is executed."""
        if name != "tw_awaited":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec: Any = next(s for f in others if (s := f.find_spec(name, path, target)) is not None)
        spec.loader = SimpleNamespace(create_module=spec.loader.create_module, exec_module=self._noting(spec.loader))
        return spec

    def _noting(self, loader: Any) -> Callable[[ModuleType], None]:
        def execute(module: ModuleType) -> None:
            self.executed.append(module.__name__)
            loader.exec_module(module)

        return execute


@pytest.mark.parametrize("first", [True, False])
def test_other_import_hooks_go_on_working(package: Callable[..., None], first: bool) -> None:
    """One that stands before us or behind us sees the import, and so do we."""
    package(tw_awaited="")
    hook = Hook()
    waiting, imported = waiting_for("tw_awaited")
    sys.meta_path.insert(0 if first else 1, hook)
    try:
        importlib.import_module("tw_awaited")
        assert hook.executed == ["tw_awaited"]
        assert len(imported) == 1
    finally:
        waiting.forget()
        without(hook)


def test_a_finder_is_taken_out_of_a_new_list() -> None:
    """A thread that walks along the old one misses no finder."""
    before = sys.meta_path
    waiting, _ = waiting_for("tw_nowhere")
    walked = iter(sys.meta_path)
    assert next(walked) is waiting
    waiting.forget()
    assert list(walked) == sys.meta_path
    assert sys.meta_path is not before


def test_two_threads_import_it_once(package: Callable[..., None]) -> None:
    """The import system's own lock is enough."""
    package(tw_awaited="import time; time.sleep(0.05)")
    _, imported = waiting_for("tw_awaited")
    threads = [threading.Thread(target=importlib.import_module, args=("tw_awaited",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(imported) == 1


def test_lending_leaves_no_finder() -> None:
    """Inside the block one more finder is asked."""
    before = list(sys.meta_path)
    with launcher_importable():
        assert sys.meta_path[1:] == before
    assert sys.meta_path == before


@pytest.mark.parametrize("own", [False, True])
def test_a_folder_of_the_name_is_no_package(own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is started beside a folder named tailwatch, an environment for example. Its own package is found."""
    (tmp_path / "tailwatch").mkdir()
    if own:
        (tmp_path / "tailwatch" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with launcher_importable():
        found = sys.meta_path[0].find_spec("tailwatch", None, None)
    assert found is not None and found.origin is not None
    assert Path(found.origin).parent == (tmp_path if own else BOOT.parent) / "tailwatch"


# ---- servers that are not what they were ----


class Watcher:
    """Wraps apps in a tuple."""

    def __init__(self) -> None:
        self.misread: list[str] = []

    def watched(self, app: Any) -> Any:
        """A tuple."""
        return ("watched", app)

    def elsewhere(self, server: str, error: Exception) -> None:
        """Remembers it."""
        self.misread.append(server)


@pytest.mark.parametrize("name", sorted(asgi_servers.SERVERS))
def test_a_stub_is_left_as_it_is(name: str) -> None:
    """A module of a server's name without what the server has: an error here, and not a trace there."""
    stub = ModuleType(name)
    for made in ({}, {"Config": type("Config", (), {}), "ASGIWorker": 7, "worker_serve": 7, "_callback_wrapper": len}):
        vars(stub).update(made)
        before = dict(vars(stub))
        with pytest.raises((AttributeError, TypeError)):
            asgi_servers.SERVERS[name](stub, Watcher())
        assert vars(stub) == before


def test_a_stub_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """One sentence that names the server, whatever the number of its modules."""
    autoinstall = Autoinstall()
    for name in ("uvicorn.config", "hypercorn.asyncio.run"):
        autoinstall._at_server(ModuleType(name))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("tailwatch: uvicorn ") and "is not watched" in record.getMessage()


def test_a_config_without_an_app_is_served_as_it_is() -> None:
    """load() of a version that keeps the app elsewhere returns what it returns."""
    config: Any = type("Config", (), {"load": lambda self: "loaded"})
    module = ModuleType("uvicorn.config")
    vars(module)["Config"] = config
    original, watcher = config.load, Watcher()
    undo = asgi_servers.uvicorn(module, watcher)
    assert config().load() == "loaded"
    assert len(watcher.misread) == 1
    undo()
    assert config.load is original


def test_undo_leaves_what_others_put_there_since() -> None:
    """A function that was replaced again after us stays."""
    module = ModuleType("gunicorn.workers.gasgi")
    worker: Any = type("ASGIWorker", (), {"load_wsgi": lambda self: None})
    vars(module)["ASGIWorker"] = worker
    undo = asgi_servers.gunicorn(module, Watcher())

    def theirs(self: Any) -> None: ...

    worker.load_wsgi = theirs
    undo()
    assert worker.load_wsgi is theirs


def test_granian_serves_one_app_for_one() -> None:
    """The lifespan and the requests reach the same watched app."""
    module: Any = ModuleType("granian.asgi")
    module._callback_wrapper = lambda app, *options: app

    class LifespanProtocol:
        def __init__(self, callable: Any) -> None:
            self.callable = callable

    module.LifespanProtocol = LifespanProtocol
    undo = asgi_servers.granian(module, Watcher())
    app = object()
    assert module._callback_wrapper(app, {}, {}) is module.LifespanProtocol(app).callable
    assert module._callback_wrapper(app) == ("watched", app)
    undo()
    assert module._callback_wrapper(app) is app and module.LifespanProtocol(app).callable is app


# ---- which processes ----


@pytest.mark.parametrize(
    ("arguments", "kind", "name"),
    [
        (["-c", "import m"], "-c", "import m"),
        (["-Ic", "code"], "-c", "code"),
        (["-cimport m"], "-c", "import m"),
        (["-m", "uvicorn", "app:app"], "-m", "uvicorn"),
        (["-mcProfile", "x.py"], "-m", "cProfile"),
        (["-B", "-X", "importtime", "-W", "error", "server.py", "-c"], "script", "server.py"),
        (["-Xdev", "-Wc", "server.py"], "script", "server.py"),
        (["--check-hash-based-pycs", "always", "-OO", "s.py", "-m"], "script", "s.py"),
        (["-"], "script", "-"),
        ([], "", ""),
        (["-i"], "", ""),
        (["-m"], "-m", ""),
    ],
)
def test_the_command_line_is_read_as_python_reads_it(arguments: list[str], kind: str, name: str) -> None:
    """Options that take values take them, clusters end in the one that does."""
    assert processes.command(arguments) == (kind, name)


@pytest.mark.parametrize(
    ("arguments", "helper"),
    [
        (["-c", "from multiprocessing.forkserver import main; main(3)"], True),
        (["-m", "pip", "install", "x"], True),
        (["-m", "vllm.model_executor.models.registry"], True),
        (["-m", "uvicorn", "app:app"], True),
        (["/site/torch/_inductor/compile_worker/__main__.py"], True),
        (["/venv/bin/ninja", "-v"], True),
        (["/venv/bin/vllm", "serve", "m"], False),
        (["-m", "vllm.entrypoints.openai.api_server"], False),
        (["engine.py"], False),
        ([], True),
    ],
)
def test_helpers_are_no_servers(arguments: list[str], helper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that started the interpreter."""
    monkeypatch.setattr(sys, "orig_argv", ["python", *arguments])
    assert processes.is_helper() is helper


def test_pools_are_no_workers() -> None:
    """Children that run chunks of work are many, and come and go."""
    from concurrent.futures import process as pools

    assert not processes.is_worker(SimpleNamespace(_target=pools._process_worker))  # type: ignore[attr-defined]
    assert processes.is_worker(SimpleNamespace(_target=test_pools_are_no_workers))
    assert processes.is_worker(SimpleNamespace())  # a subclass of Process with a run() of its own


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("VLLM::EngineCore_DP1\0", "engine"),
        ("VLLM::Worker_TP3", "worker"),
        ("VLLM::APIServer_0", "api"),
        ("sglang::scheduler_TP0", "engine"),
        ("sglang::detokenizer", "detokenizer"),
        ("sglang::tokenizer_worker:123", "api"),
        ("ray::RayWorkerWrapper.execute_method", "worker"),
        ("python\0-m\0vllm", None),
        ("", None),
    ],
)
def test_titles_give_roles(title: str, role: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What setproctitle wrote over the command line, or the command line itself."""
    monkeypatch.setattr(process_roles, "_title", lambda: title)
    assert process_roles.role_of_process() == role


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("engine", "engine"),
        ("Engine-1", "engine"),
        ("scheduler_0", "scheduler"),
        ("worker.3", "worker"),
        ("detokenizer", "detokenizer"),
        ("EngineCore_DP0", "engine"),
        ("Process-1", None),
        ("engineering", None),
        ("MyEngine", None),
    ],
)
def test_names_of_processes_give_roles(name: str, role: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names multiprocessing was given: those of known servers, and any that a program may choose."""
    monkeypatch.setattr(process_roles, "_title", lambda: "")
    monkeypatch.setattr(process_roles, "parent_process", lambda: SimpleNamespace())
    monkeypatch.setattr(process_roles, "current_process", lambda: SimpleNamespace(name=name))
    assert process_roles.role_of_process() == role


class Asked(BaseManager):
    """A manager that returns what its own process is."""


Asked.register("role", callable=process_roles.role_of_process)


def test_a_manager_s_process_is_no_worker() -> None:
    """What multiprocessing starts to keep shared objects makes no tokens, also where a fork brought us there: LitServe
    has one."""
    with Asked(ctx=get_context("fork")) as manager:
        role = manager.role()._getvalue()  # type: ignore[attr-defined]
    assert role == "manager"
    assert not process_roles.delays_streams(role)


def test_a_server_s_processes_are_a_group(tmp_path: Path) -> None:
    """A process that imports a server names a directory for its children; close() takes that back. What a tool
    imports, a directory that was named, and no TAILWATCH=1 change nothing."""
    script = tmp_path / "serving.py"
    script.write_text("""
import json, os, sys
import tailwatch_boot
tailwatch_boot.boot()
import uvicorn.config
named = os.environ.get("TAILWATCH_DIR")
from tailwatch_boot.autoinstall import current
if current(): current().close()
print(json.dumps([named, os.environ.get("TAILWATCH_DIR")]))
""")

    def names(*command: str, **variables: str) -> list[str | None]:
        done = subprocess.run(
            [sys.executable, *command], env=environment(**variables), capture_output=True, text=True, check=True
        )
        found: list[str | None] = json.loads(done.stdout)
        return found

    named, after = names(str(script), TAILWATCH="1")
    assert named is not None and re.fullmatch("/dev/shm/tailwatch-run-[0-9a-f]{8}", named) and after is None
    assert not os.path.exists(named)  # it is made by the first that joins
    assert names(str(script), TAILWATCH="1", TAILWATCH_DIR="/here") == ["/here", "/here"]
    assert names("-c", script.read_text(), TAILWATCH="1") == [None, None]
    assert names(str(script)) == [None, None]


def test_this_process_has_no_role() -> None:
    """A test run is no server; the question is answered from /proc all the same."""
    assert process_roles.role_of_process() is None


@pytest.mark.parametrize(
    "role", ["engine", "worker", "detokenizer", "scheduler", "engine-1", "worker.3", "engine_core"]
)
def test_roles_between_a_token_and_its_stream(role: str) -> None:
    """A stop of one of these delays the streams of others; a number or a word may follow."""
    assert process_roles.delays_streams(role)


@pytest.mark.parametrize("role", ["api", "api-1", "main", "coordinator", "controller", "engineering", "my-engine", ""])
def test_roles_that_delay_no_other_process(role: str) -> None:
    """Servers delay their own streams only, launchers, coordinators and unknown names delay none."""
    assert not process_roles.delays_streams(role)


def test_every_role_that_is_recognized_is_sorted() -> None:
    """Engines and workers by any of their names, and no others, stand between a token and its stream."""
    given = {
        role
        for table in (process_roles._BY_TITLE, process_roles._BY_NAME, process_roles._BY_TARGET)
        for _, role in table
    }
    assert {role for role in given if process_roles.delays_streams(role)} == {
        "engine",
        "scheduler",
        "worker",
        "detokenizer",
    }


NUMBER = _hot.engine_id(0)
ITSELF, LIKE = _hot.ENGINE_ITSELF | os.getpid(), _hot.ENGINE_LIKE | os.getppid()


def engine_of(role: str, engine: str = "") -> tuple[int, int]:
    """The unit that a process of this role publishes to its group, and the engine of its own streams."""
    imported: list[int] = []
    core: Any = SimpleNamespace(joined=False, leave=lambda: None, renew=lambda: None, set_serves=imported.append)
    core.maps_file = False
    core.set_engine, core.load = lambda engine: None, lambda: (0, 0)
    core.join = lambda directory, unit: imported.append(unit)
    GroupMember(core, "/group", pytest.fail, engine).enter(role)
    serves, unit = imported
    return unit, serves


@pytest.mark.parametrize(
    ("role", "unit"),
    [
        *(("engine", ITSELF), ("worker", LIKE), ("scheduler", LIKE), ("detokenizer", _hot.ENGINE_SHARED)),
        *(("engine-1", NUMBER + 1), ("engine.0", NUMBER), ("worker_dp1_tp0", NUMBER + 1), ("worker-1", LIKE)),
        *(("api", 0), ("main", 0), ("controller", 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a unit holds the number of the process
)
def test_the_group_records_which_processes_delay(role: str, unit: int) -> None:
    """A launcher that stops delays no process: it joins with a unit of 0. An engine is one of its own."""
    assert engine_of(role) == (unit, unit if role.startswith("engine") or "dp" in role else 0)


@pytest.mark.parametrize(
    ("role", "unit"), [("engine", NUMBER + 7), ("engine-1", NUMBER + 7), ("detokenizer", NUMBER + 7), ("api", 0)]
)
def test_the_users_engine_comes_first(role: str, unit: int) -> None:
    """engine= stands above all names; in an API process it is the engine of its streams, and it delays no other."""
    assert engine_of(role, "7") == (unit, NUMBER + 7)


TITLES = {
    "VLLM::EngineCore": "",
    "VLLM::EngineCore_DP0": "0",
    "VLLM::EngineCore_DP11": "11",
    "VLLM::DPEngineCore_3": "3",
    "VLLM::Worker": "",
    "VLLM::Worker_TP1": "",
    "VLLM::Worker_DP1_PP0_TP3_EP7": "1",
    "VLLM::APIServer_1": "",
    "VLLM::DPCoordinator": "",
    "sglang::scheduler": "",
    "sglang::scheduler_TP1": "0",
    "sglang::scheduler_PP1_TP0": "0",
    "sglang::scheduler_DP1_TP0": "1",
    "sglang::scheduler_DP2": "2",
    "sglang::detokenizer": "",
    "EngineCore_DP1": "1",
    "EngineCore": "",
    "SpawnProcess-3": "",
    "python serve.py --model m_dp4": "",
}


@pytest.mark.parametrize(("title", "engine"), TITLES.items())
def test_engines_by_their_titles(monkeypatch: pytest.MonkeyPatch, title: str, engine: str) -> None:
    """The data parallel rank distinguishes engines; ranks of tensor and pipeline parallelism are one engine."""
    monkeypatch.setattr(process_ranks, "names_of_process", lambda: (title,))
    assert process_ranks.engine_of_process() == engine


def test_a_child_s_name_comes_before_its_title(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM names the process EngineCore_DP1 before it has a title."""
    monkeypatch.setattr(
        process_roles, "_title", lambda: "/usr/bin/python -c from multiprocessing.spawn import spawn_main"
    )
    monkeypatch.setattr(process_roles, "parent_process", lambda: object())
    monkeypatch.setattr(process_roles, "current_process", lambda: SimpleNamespace(name="EngineCore_DP1"))
    assert process_ranks.engine_of_process() == "1"


def test_the_entry_points_are_installed() -> None:
    """Both servers find the plugin by its group, and it does nothing unless asked."""
    from importlib.metadata import entry_points

    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        (point,) = entry_points(group=group, name="tailwatch")
        assert point.load() is tailwatch_boot.plugin
    code = "import tailwatch_boot, sys, json; tailwatch_boot.plugin(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert "tailwatch" not in json.loads(done.stdout)
