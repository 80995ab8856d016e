"""install() and uninstall(): what they change in the process, and that it can be undone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch.gc.hook import INTERPRETER_FROZEN
from tailwatch.options.config import OPTIONS
from tailwatch.runtime import background, install, session
from tailwatch.runtime.background import Daemon, Task

from ..support.ports import free_port
from ..support.waiting import until

FRAME = b'data: {"id":"c","object":"text_completion","model":"m","choices":[{"index":0,"text":" t"}]}\n\n'


class App:
    """A small streaming server, without a framework."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Two tokens and the end."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(2):
            await send({"type": "http.response.body", "body": FRAME, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


class Slotted(App):
    """Another class, another app."""

    __slots__ = ()


def call(app: Any, kind: str = "http") -> list[Any]:
    """One request; what the app sent."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"} if kind == "lifespan" else {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    return sent


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tailwatch")]


def state() -> dict[str, Any]:
    """All of the process that install() may change."""
    return {
        "callbacks": list(gc.callbacks),
        "functions": [id(gc.freeze), id(gc.unfreeze), id(gc.collect)],
        "enabled": gc.isenabled(),
        "thresholds": gc.get_threshold(),
        "frozen": gc.get_freeze_count() > INTERPRETER_FROZEN,
        "threads": ours(),
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "switch interval": sys.getswitchinterval(),
        "handlers": list(logging.getLogger("tailwatch").handlers),
    }


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Every test starts without an install and leaves none; what was changed is as it was."""
    tailwatch.uninstall()
    gc.unfreeze()
    before = state()
    yield
    tailwatch.uninstall()
    assert state() == before


@pytest.fixture
def variables(untouched: None) -> Iterator[pytest.MonkeyPatch]:
    """For changes of the environment, which are undone before all of it is compared."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("TAILWATCH_DIR", raising=False)
        yield patched
        tailwatch.uninstall()


@pytest.fixture
def no_self_test(untouched: None) -> Iterator[list[str]]:
    """Calls of gc.collect, freeze and unfreeze, which do nothing."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        for name in ("collect", "freeze", "unfreeze"):
            patched.setattr(gc, name, lambda *arguments, name=name: seen.append(name) or 0)
        yield seen
        tailwatch.uninstall()


# ---- install ----


def test_the_same_options_give_the_same_watch() -> None:
    """Installed again, with the same options or without any, it is the same one."""
    watch = tailwatch.install(gc="observe", slow_gap_ms=5)
    assert tailwatch.install(gc="observe", slow_gap_ms=5) is watch
    assert tailwatch.install() is watch
    assert tailwatch.install(gc=None, slow_gap_ms=None) is watch
    assert tailwatch.current() is watch
    assert len(gc.callbacks) == len(set(map(id, gc.callbacks)))


def test_other_options_are_an_error_that_names_them() -> None:
    """The error has what is in force, what differs, and how to go on; nothing changes."""
    watch = tailwatch.install(gc="observe", slow_gap_ms=5)
    with pytest.raises(
        tailwatch.AlreadyInstalledError, match=r"slow_gap_ms=5\.0.*uninstall\(\) first to change slow_gap_ms"
    ):
        tailwatch.install(gc="observe", slow_gap_ms=6)
    with pytest.raises(tailwatch.AlreadyInstalledError, match="gc=observe"):
        tailwatch.install(App(), gc="off", slow_gap_ms=5)
    assert tailwatch.current() is watch
    assert (watch.config.slow_gap_ms, watch.config.gc, watch.app) == (5.0, "observe", None)


def test_install_from_many_threads_is_one_install() -> None:
    """The first that comes makes it."""
    barrier = threading.Barrier(8)

    def work(_: int) -> tailwatch.Watch:
        barrier.wait()
        return tailwatch.install(gc="observe")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        watches = set(pool.map(work, range(8)))
    assert watches == {tailwatch.current()}
    assert len(gc.callbacks) == len(set(map(id, gc.callbacks)))


def test_two_apps_in_one_process() -> None:
    """Both are counted, under one watch; uninstall() gives both their class back."""
    first, second = App(), Slotted()
    watch = tailwatch.install(first, gc="observe")
    assert tailwatch.install(second, gc="observe") is watch
    assert watch.app is first
    for app in (first, second, second):
        call(app)
    assert watch.snapshot().requests["good"] == 3
    assert watch.snapshot().tokens == 6
    assert tailwatch.uninstall() == []
    assert (type(first), type(second)) == (App, Slotted)


def test_the_same_app_twice_is_counted_once() -> None:
    """Installed twice on one app, a request is one request."""
    app = App()
    tailwatch.install(app, gc="observe")
    tailwatch.install(app, gc="observe")
    call(app)
    assert tailwatch.snapshot().opened == 1


def test_a_bare_callable_is_wrapped() -> None:
    """What has no class to swap is served through watch.app; after uninstall() the wrapper is inert and reported."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await App()(scope, receive, send)

    watch = tailwatch.install(app, gc="observe")
    assert watch.app is not app
    plain = call(app)
    assert call(watch.app) == plain
    assert watch.snapshot().opened == 1
    (sentence,) = tailwatch.uninstall()
    assert "wrapper" in sentence
    assert call(watch.app) == plain
    assert watch.snapshot().opened == 1


def test_install_after_uninstall_counts_anew() -> None:
    """A new watch with other options, and numbers from zero."""
    with tailwatch_installed(gc="observe") as first, tailwatch.stream():
        pass
    with tailwatch_installed(gc="off", max_label_sets=2) as second:
        assert second is not first
        assert (second.snapshot().opened, first.snapshot().opened) == (0, 1)


class tailwatch_installed:
    """install() for a block."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __enter__(self) -> tailwatch.Watch:
        return tailwatch.install(**self.options)

    def __exit__(self, *error: object) -> None:
        assert tailwatch.uninstall() == []


@pytest.mark.parametrize(
    "ask", [tailwatch.snapshot, tailwatch.stream, tailwatch.freeze, tailwatch.doctor, tailwatch.current]
)
def test_before_install_it_raises(ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """NotInstalledError names the call that is missing."""
    monkeypatch.setattr(install, "_was_installed", False)
    with pytest.raises(tailwatch.NotInstalledError, match=r"tailwatch\.install"):
        ask()


# ---- what goes wrong leaves nothing behind ----

BAD = [
    ("slo", 5, "ttft<=soon"),
    ("slo", "ttft<=1", ""),
    ("gc", "sometimes", "sometimes"),
    ("gc_warn_ms", -1, "-1"),
    ("gc_warn_ms", "50", "fifty"),
    ("gc_log_all", "yes", "maybe"),
    ("slow_gap_ms", float("nan"), "nan"),
    ("metrics_path", "metrics", "metrics"),
    ("metrics_port", 65536, "65536"),
    ("metrics_port", 80.5, "http"),
    ("role", "", "a b"),
    ("engine", -1, "a b"),
    ("routes", "generate", "generate"),
    ("routes", 5, "/ok,bad"),
    ("max_label_sets", 0, "0"),
    ("max_label_sets", 4097, "many"),
    ("trust_request_start", 1, "2"),
    ("fast_sse", 1, "2"),
    ("trace_events", 100, "100"),
    ("colour", "red", ""),
]


@pytest.mark.parametrize(("option", "value", "text"), BAD, ids=lambda value: str(value))
def test_a_bad_argument_is_named_and_leaves_nothing(option: str, value: Any, text: str) -> None:
    """The error names the option and what was found; the app and the process are as before."""
    app, before = App(), state()
    with pytest.raises(tailwatch.OptionError) as caught:
        tailwatch.install(app, **{option: value})
    assert caught.value.option == option
    assert str(caught.value).startswith(f"{option}=")
    assert caught.value.source is None
    assert type(app) is App
    assert state() == before
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()


@pytest.mark.parametrize(("option", "value", "text"), [row for row in BAD if row[2]], ids=lambda value: str(value))
def test_a_bad_variable_is_named_and_leaves_nothing(option: str, value: Any, text: str) -> None:
    """The same by environment: the error names the variable too."""
    variable = f"TAILWATCH_{option.upper()}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(variable, text)
        with pytest.raises(tailwatch.OptionError, match=variable) as caught:
            tailwatch.install(App())
    assert (caught.value.option, caught.value.source) == (option, variable)
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()


@pytest.mark.parametrize("door", [tailwatch.install, tailwatch.Middleware])
@pytest.mark.parametrize("app", [5, "app", lambda scope: None, object()], ids=["5", "text", "asgi 2", "object"])
def test_what_is_no_app_leaves_nothing(door: Callable[..., Any], app: Any) -> None:
    """A TypeError, and nothing is installed."""
    before = state()
    with pytest.raises(TypeError, match="ASGI"):
        door(app, gc="observe")
    assert state() == before
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()


def test_a_port_in_use_leaves_nothing() -> None:
    """install(metrics_port=) of a port that is taken names the option, and undoes what it had begun."""
    before = state()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(tailwatch.OptionError, match=r"metrics_port=\d+: .*in use"):
            tailwatch.install(metrics_port=taken.getsockname()[1], gc="observe")
    assert state() == before
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()


@pytest.fixture
def busy_port(untouched: None) -> Iterator[int]:
    """A port that is taken, named by TAILWATCH_METRICS_PORT."""
    with pytest.MonkeyPatch.context() as patched, socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        patched.setenv("TAILWATCH_METRICS_PORT", str(port))
        yield port


def test_a_port_of_the_environment_that_is_in_use(busy_port: int, caplog: pytest.LogCaptureFixture) -> None:
    """TAILWATCH_METRICS_PORT is for all processes, and one of them has it: the others go on, and report it."""
    with tailwatch_installed(gc="observe") as watch:
        (note,) = watch.notes
        assert f"TAILWATCH_METRICS_PORT={busy_port}" in note and "in use" in note
        assert [record.getMessage() for record in caplog.records] == [f"tailwatch: {note}"]
        assert watch.snapshot().errors["render"] == 1


def test_a_port_of_the_environment_is_not_for_apps(busy_port: int) -> None:
    """An app serves its metrics itself: the variable is ignored there, and doctor has it."""
    watch = tailwatch.install(App(), gc="observe")
    (note,) = watch.notes
    assert "ignored" in note
    assert any(note in finding.detail for finding in tailwatch.doctor())


def test_a_second_app_that_is_none_keeps_the_first() -> None:
    """It is refused, and the first goes on."""
    app = App()
    tailwatch.install(app, gc="observe")
    with pytest.raises(TypeError):
        tailwatch.install(5)
    call(app)
    assert tailwatch.snapshot().opened == 1


def test_every_option_by_environment() -> None:
    """install() without arguments takes all of it from the environment, and an argument wins."""
    given = {
        "SLO": "e2e<=3s",
        "GC": "observe",
        "GC_WARN_MS": "50",
        "GC_LOG_ALL": "yes",
        "SLOW_GAP_MS": "250.5",
        "METRICS_PATH": "/m",
        "ROLE": "front",
        "ROUTES": "/a,/b",
        "MAX_LABEL_SETS": "7",
        "TRUST_REQUEST_START": "on",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, text in given.items():
            patched.setenv(f"TAILWATCH_{name}", text)
        config = tailwatch.install(max_label_sets=9).config
    assert (config.slo.e2e, config.gc, config.gc_warn_ms, config.gc_log_all) == (3.0, "observe", 50.0, True)
    assert (config.slow_gap_ms, config.metrics_path, config.role, config.routes) == (250.5, "/m", "front", ("/a", "/b"))
    assert (config.max_label_sets, config.trust_request_start) == (9, True)
    assert tailwatch.snapshot().processes[0].role == "front"


# ---- uninstall ----


def test_uninstall_without_install() -> None:
    """Nothing happens."""
    assert tailwatch.uninstall() == []
    assert tailwatch.uninstall() == []


@pytest.mark.parametrize("policy", ["freeze", "observe", "off"])
def test_uninstall_leaves_no_trace(policy: str) -> None:
    """After requests, a freeze and the daemon's start, all is as it was: callbacks, functions, class, threads."""
    before, app = state(), App()
    watch = tailwatch.install(app, gc=policy)
    call(app, "lifespan")
    for _ in range(32):
        call(app)
    assert ours() == ["tailwatch"]
    assert (gc.get_freeze_count() > 0) is (policy == "freeze")
    assert [done.reason for done in watch.gc.state.done] == (["start-up", "warm-up"] if policy == "freeze" else [])
    assert (len(gc.callbacks) == len(before["callbacks"])) is (policy == "off")
    assert tailwatch.uninstall() == []
    assert state() == before
    assert type(app) is App
    call(app)
    assert watch.snapshot().opened == 32


def test_the_watch_outlives_uninstall_quietly() -> None:
    """Code that kept the watch may still ask and even stamp; no thread comes back."""
    watch = tailwatch.install(gc="observe")
    open_stream = watch.stream()
    tailwatch.uninstall()
    with open_stream as stream:
        stream.token()
    with watch.stream() as stream:
        stream.token()
    assert watch.snapshot().requests["good"] == 2
    assert ours() == []


def test_streams_after_uninstall_do_nothing() -> None:
    """The host stamps by hand and uninstalls: its code goes on as it is."""
    with tailwatch_installed(gc="observe"), tailwatch.stream() as stream:
        members = {name for name in dir(type(stream)) if not name.startswith("_")}
    with tailwatch.stream(model="m", arrival=5) as stream:
        assert members == {name for name in dir(stream) if not name.startswith("_")}
        stream.token()
        stream.token(2, at=7, choice=1)
        stream.usage(3)
        stream.status(200)
        stream.label("m", "r")
        stream.record_send_wait(1, 2)
        assert (stream.tokens, stream.ttft_ns, stream.delay_ns, stream.arrival_ns) == (0, None, 0, 5)
        assert not stream.closed
    assert stream.closed

    async def aloud() -> None:
        async with tailwatch.stream() as stream:
            stream.fail()
            stream.timeout()
            stream.abort()

    asyncio.run(aloud())
    with pytest.raises(KeyError), tailwatch.stream():
        raise KeyError


def test_installing_again_takes_no_more_memory() -> None:
    """A segment stays mapped: the next install() starts from zero in the same one, under its own role and SLO."""
    with tailwatch_installed(gc="observe", role="one", slo="e2e<=1s") as first, tailwatch.stream(route="/old"):
        pass
    with tailwatch_installed(gc="observe", role="two", slo="e2e<=2s") as second:
        assert second.core is first.core
        with tailwatch.stream() as stream:
            stream.token()
        seen = second.snapshot()
        assert (seen.opened, seen.tokens, seen.slo.e2e, seen.processes[0].role) == (1, 1, 2.0, "two")
        assert ("unknown", "/old") not in seen.labels
    with tailwatch_installed(gc="observe", max_label_sets=5) as third:
        assert third.core is not first.core


def test_a_stream_across_two_installs_is_not_counted() -> None:
    """What the first install opened is no business of the second."""
    tailwatch.install(gc="observe")
    context = tailwatch.stream()
    tailwatch.uninstall()
    with tailwatch_installed(gc="observe") as watch:
        with context as stream:
            stream.token()
        seen = watch.snapshot()
        assert (seen.opened, seen.in_flight, seen.tokens, sum(seen.requests.values())) == (0, 0, 0, 0)


def test_apps_that_are_gone_are_let_go() -> None:
    """A reloader makes app after app: none is kept, but the first, which Watch.app names."""
    watch = tailwatch.install(App(), gc="observe")
    gone = [weakref.ref(app) for app in (App() for _ in range(3)) if tailwatch.install(app) is watch]
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    last = Slotted()
    tailwatch.install(last)
    assert len(watch._apps) == 2


def test_what_could_not_be_undone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each sentence is a warning."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Does nothing."""

    tailwatch.install(app, gc="observe")
    report = tailwatch.uninstall()
    assert [record.getMessage() for record in caplog.records] == [f"tailwatch: {sentence}" for sentence in report]
    assert report


# ---- what children get ----


def test_the_directory_of_an_argument_is_handed_on_to_children(tmp_path: Path, variables: pytest.MonkeyPatch) -> None:
    """They find it in their environment until uninstall(), which puts back what was there."""
    ask = [sys.executable, "-c", "import os; print(os.environ['TAILWATCH_DIR'])"]
    with tailwatch_installed(dir=tmp_path / "group", gc="observe"):
        assert subprocess.check_output(ask, text=True) == f"{tmp_path}/group\n"
        assert tailwatch.install() is tailwatch.current()
    assert "TAILWATCH_DIR" not in os.environ
    variables.setenv("TAILWATCH_DIR", str(tmp_path / "other"))
    with tailwatch_installed(dir=tmp_path / "group", gc="observe"):
        assert os.environ["TAILWATCH_DIR"] == f"{tmp_path}/group"
    assert os.environ["TAILWATCH_DIR"] == f"{tmp_path}/other"


def test_what_was_in_the_environment_is_left_alone(tmp_path: Path, variables: pytest.MonkeyPatch) -> None:
    """A directory that came from there stays there; one that other code has put there since is theirs, and reported."""
    variables.setenv("TAILWATCH_DIR", str(tmp_path / "group"))
    with tailwatch_installed(gc="observe"):
        pass
    assert os.environ["TAILWATCH_DIR"] == f"{tmp_path}/group"
    tailwatch.install(dir=tmp_path / "mine", gc="observe")
    os.environ["TAILWATCH_DIR"] = "/theirs"
    (sentence,) = tailwatch.uninstall()
    assert sentence.startswith("TAILWATCH_DIR was changed ")
    assert os.environ["TAILWATCH_DIR"] == "/theirs"


def test_a_failed_install_leaves_nothing_in_the_environment(tmp_path: Path, variables: pytest.MonkeyPatch) -> None:
    """As after uninstall()."""
    with pytest.raises(TypeError):
        tailwatch.install(5, dir=tmp_path / "group")
    assert "TAILWATCH_DIR" not in os.environ


# ---- automatic installation ----


def test_a_middleware_installs() -> None:
    """The class alone is an install: requests through it are counted."""
    layer = tailwatch.Middleware(App(), gc="observe", slow_gap_ms=7)
    assert call(layer) == call(App())
    assert tailwatch.snapshot().requests["good"] == 1
    assert tailwatch.current().config.slow_gap_ms == 7.0


def test_a_middleware_after_install_joins_it() -> None:
    """Inside an installed app a request is counted once, and options that differ are reported, not raised."""
    watch = tailwatch.install(gc="observe", slow_gap_ms=5)
    layer = tailwatch.Middleware(App(), slow_gap_ms=6, gc="observe")
    outer = tailwatch.Middleware(layer)
    call(outer)
    assert watch.snapshot().opened == 1
    assert watch.config.slow_gap_ms == 5.0
    (note,) = watch.notes
    assert "slow_gap_ms" in note and "gc" not in note
    assert any(note in finding.detail for finding in tailwatch.doctor())


def test_a_middleware_with_a_bad_variable_lets_everything_through(
    variables: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A door does not keep a server from starting; an argument of its own that is bad is code, and is refused."""
    variables.setenv("TAILWATCH_SLO", "fast")
    layer = tailwatch.Middleware(App(), gc="observe")
    assert call(layer) == call(App())
    (record,) = caplog.records
    assert "TAILWATCH_SLO" in record.getMessage() and "runs without tailwatch" in record.getMessage()
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()
    with pytest.raises(tailwatch.OptionError, match="gc="):
        tailwatch.Middleware(App(), gc="sometimes", slo="e2e<=1s")


def test_install_after_a_door_adopts_its_watch(no_self_test: list[str]) -> None:
    """The arguments win, what the door had set and nothing contradicts stays, what is fixed is noted."""
    layer = tailwatch.Middleware(App(), gc="observe", slo="e2e<=1s", gc_warn_ms=3)
    door = tailwatch.current()
    watch = tailwatch.install(App(), slow_gap_ms=100, max_label_sets=8, metrics_path="/m", routes=["/x"], slo="e2e<=2s")
    assert watch is door
    config = watch.config
    assert (config.gc, config.gc_warn_ms, config.slow_gap_ms, config.slo.e2e) == ("observe", 3.0, 100.0, 2.0)
    assert (config.max_label_sets, config.routes, config.metrics_path) == (32, ("/x",), "/metrics")
    (note,) = watch.notes
    assert "max_label_sets, metrics_path" in note
    assert any(note in finding.detail for finding in tailwatch.doctor())
    assert watch.snapshot().slo.e2e == 2.0
    call(layer)
    assert watch.snapshot().opened == 1
    with pytest.raises(tailwatch.AlreadyInstalledError):
        tailwatch.install(slow_gap_ms=101)


def test_the_engine_can_be_named_after_a_door() -> None:
    """Streams that open from then on are that engine's; nothing is noted."""
    tailwatch.Middleware(App(), gc="observe")
    watch = tailwatch.install(engine=3)
    assert (watch.config.engine, watch.notes) == ("3", [])


def test_adopting_without_differences_notes_nothing() -> None:
    """install() without an app and without options contradicts nothing, whatever its own defaults would be."""
    tailwatch.Middleware(App(), gc="observe")
    assert tailwatch.install().notes == []
    assert tailwatch.current().config.role == "api"


@pytest.mark.parametrize("first", ["freeze", "observe", "off"])
@pytest.mark.parametrize("second", ["freeze", "observe", "off"])
def test_the_policy_can_be_taken_over(no_self_test: list[str], first: str, second: str) -> None:
    """From any policy to any other: the hook stands once or not at all, and uninstall() undoes all of it."""
    plain, freeze = list(gc.callbacks), gc.freeze
    app = App()
    tailwatch.Middleware(app, gc=first)
    watch = tailwatch.install(gc=second)
    assert watch.config.gc == watch.gc.policy == second
    hooked = [watch.core.gc_first, *plain, watch.core.gc_last]
    assert gc.callbacks == (plain if second == "off" else hooked)
    call(app, "lifespan")
    watch.gc.on_startup()
    assert ("freeze" in no_self_test) is (second == "freeze")
    tailwatch.uninstall()
    assert (gc.callbacks, gc.freeze) == (plain, freeze)


def test_switching_the_policy_off_thaws(no_self_test: list[str]) -> None:
    """A freeze that the door's policy had made is undone when install(gc="off") takes over."""
    tailwatch.Middleware(App(), gc="freeze")
    tailwatch.current().gc.on_startup()
    assert no_self_test == ["collect", "freeze", "collect"]
    tailwatch.install(gc="off")
    assert no_self_test == ["collect", "freeze", "collect", "unfreeze"]


# ---- the policy, through install ----


def test_off_changes_nothing() -> None:
    """No hook, no wrapper, no freeze; streams are stamped all the same."""
    before = state()
    with tailwatch_installed(gc="off", quiet=True):
        assert state() == {**before, "threads": ["tailwatch"]}
        with tailwatch.stream() as stream:
            stream.token()
        assert tailwatch.snapshot().tokens == 1


def test_freeze_on_demand() -> None:
    """tailwatch.freeze() returns what it did; uninstall() undoes it."""
    with tailwatch_installed(gc="observe"):
        done = tailwatch.freeze()
        assert (done.reason, done.unfrozen) == ("requested", False)
        assert done.seconds > 0
        assert gc.get_freeze_count() > 0
        assert tailwatch.refreeze().unfrozen
        assert tailwatch.snapshot().gc.collections["gc_own"] == 2
    assert gc.get_freeze_count() == 0


def test_the_first_stream_by_hand_freezes_when_it_ends(no_self_test: list[str]) -> None:
    """Without an app there is no start-up: the first moment without a stream serves, never one with a stream."""
    tailwatch.install(gc="freeze")
    with tailwatch.stream():
        with tailwatch.stream():
            pass
        assert no_self_test == []
    assert no_self_test == ["collect", "freeze", "collect"]


def test_an_error_in_the_policy_is_counted_not_raised(no_self_test: list[str]) -> None:
    """Something of ours fails: the request ends as it would have."""
    watch = tailwatch.install(gc="freeze")

    def broken(**options: Any) -> None:
        raise RuntimeError("broken")

    watch.gc.freeze = broken  # type: ignore[assignment,method-assign]
    with tailwatch.stream() as stream:
        stream.token()
    assert watch.snapshot().errors["policy"] == 1
    assert watch.snapshot().requests["good"] == 1


# ---- the process without an app ----


def test_a_process_without_an_app_serves_its_metrics() -> None:
    """install(role="engine", metrics_port=...) answers /metrics on its own port until uninstall()."""
    port = free_port()
    tailwatch.install(role="engine", metrics_port=port, gc="observe")
    with tailwatch.stream(model="m") as stream:
        stream.token()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert answer.status == 200
    assert 'tailwatch_output_tokens_total{model_name="m",route="stream"} 1' in text
    assert 'process="engine-0"' in text
    assert tailwatch.uninstall() == []
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)
    assert ours() == []


# ---- memory and snapshots ----


def test_memory_at_the_defaults() -> None:
    """At most 5 MiB, fixed at install."""
    with tailwatch_installed(gc="observe") as watch:
        before = watch.memory_bytes
        assert before <= 5 * 2**20
        for i in range(1000):
            with tailwatch.stream(model=f"m{i}") as stream:
                stream.token()
        assert watch.memory_bytes == before


GROWTH = """
import itertools, sys
import tailwatch

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

watch = tailwatch.install(gc="observe")
kind, count = sys.argv[1], int(sys.argv[2])

def streams(count):
    for i in itertools.repeat(None, count):
        with tailwatch.stream(model="m", request_id="r", trace_id="t") as stream:
            stream.token()
            stream.token(2)

def stamps(count):
    with tailwatch.stream(model="m") as stream:
        for i in itertools.repeat(None, count):
            stream.token()

work = {"streams": streams, "stamps": stamps}[kind]
work(count)  # what a snapshot needs, and pages that the first tokens touch
tailwatch.snapshot().as_dict()
before = resident()
work(count)
print(resident() - before)
"""


@pytest.mark.parametrize(
    ("kind", "count"),
    [("streams", 100_000), ("stamps", 1_000_000), pytest.param("stamps", 10_000_000, marks=pytest.mark.slow)],
)
def test_memory_does_not_grow(kind: str, count: int) -> None:
    """Streams and stamps take no memory, but for the pages of fixed rings that slow gaps come to touch: half a MiB."""
    command = [sys.executable, "-c", GROWTH, kind, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**20


def test_a_window_is_checked() -> None:
    """snapshot() takes windows as Snapshot.window() does."""
    with tailwatch_installed(gc="observe"):
        for window in ("1 fortnight", 0, -1, "2h", None.__class__):
            with pytest.raises(tailwatch.OptionError):
                tailwatch.snapshot(window)  # type: ignore[arg-type]
        assert tailwatch.snapshot("5m").seconds <= tailwatch.snapshot().seconds


def test_the_difference_of_two_snapshots() -> None:
    """later - earlier is what came in between."""
    with tailwatch_installed(gc="observe"):
        with tailwatch.stream() as stream:
            stream.token()
        earlier = tailwatch.snapshot()
        with tailwatch.stream() as stream:
            stream.token(5)
        between = tailwatch.snapshot() - earlier
        assert (between.tokens, between.requests["good"]) == (5, 1)


def test_what_callbacks_others_change_is_seen_by_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """gc.callbacks cleared by other code: the daemon puts ours back and counts it."""
    monkeypatch.setattr(background, "WAKE_SECONDS", 0.01)
    before = list(gc.callbacks)
    watch = tailwatch.install(gc="observe")
    gc.callbacks.clear()
    until(lambda: watch.snapshot().errors["gc_hook"] == 1)
    assert gc.callbacks == [watch.core.gc_first, watch.core.gc_last]
    tailwatch.uninstall()
    gc.callbacks[:] = before


# ---- the daemon ----


@pytest.mark.parametrize("kind", ["lifespan", "http"])
def test_the_daemon_starts_with_the_app(kind: str) -> None:
    """At its start-up or first request, not at install, so that a server may fork first; once only."""
    app = App()
    tailwatch.install(app, gc="observe")
    assert ours() == []
    for _ in range(3):
        call(app, kind)
        assert ours() == ["tailwatch"]


def test_without_an_app_the_daemon_starts_at_install() -> None:
    """No request would start it."""
    with tailwatch_installed(gc="observe"):
        assert ours() == ["tailwatch"]


def test_a_fork_child_without_an_app_has_its_daemon() -> None:
    """It looks after the child as it did after the parent."""
    with tailwatch_installed(gc="observe") as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on, for a fork beside any thread
        child = os.fork()
        if child == 0:
            alive = watch._daemon._thread is not None and watch._daemon._thread.is_alive()
            os._exit(0 if alive and ours() == ["tailwatch"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("one_of_several", [True, False])
def test_a_worker_on_its_own_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, one_of_several: bool
) -> None:
    """Started by another process, its numbers are its own: one warning, and a note for doctor."""
    monkeypatch.setattr(session, "parent_process", lambda: object() if one_of_several else None)
    app = App()
    watch = tailwatch.install(app, gc="observe")
    for _ in range(2):
        call(app, "lifespan")
    warned = ["this process alone" in record.getMessage() for record in caplog.records]
    assert warned == ([True] if one_of_several else [])
    assert len(watch.notes) == one_of_several


def test_the_first_app_makes_an_api_of_the_process() -> None:
    """install(), then install(app): its role is what install(app) would have given it."""
    watch = tailwatch.install(gc="observe")
    assert watch.snapshot().processes[0].role == "worker"
    app = App()
    tailwatch.install(app)
    assert (watch.config.role, watch.snapshot().processes[0].role, watch.notes) == ("api", "api", [])
    call(app)
    assert watch.snapshot().labels != []


@pytest.mark.parametrize("why", ["named", "seen"])
def test_a_role_that_stays(why: str) -> None:
    """One that was given, or under which requests were counted; the latter is noted."""
    watch = tailwatch.install(gc="observe", role="worker" if why == "named" else None)
    if why == "seen":
        with tailwatch.stream():
            pass
    tailwatch.install(App())
    assert watch.snapshot().processes[0].role == "worker"
    assert len(watch.notes) == (why == "seen")


def test_the_watch_shows_what_it_takes() -> None:
    """The version, the memory, the policy and the SLO."""
    with tailwatch_installed(gc="observe") as watch:
        memory = f"{watch.memory_bytes / 2**20:.1f} MiB fixed"
        for part in (tailwatch.__version__, memory, "gc=observe", "SLO ttft<=2s,tpot<=200ms,itl<=1s@99%"):
            assert part in repr(watch)


def test_the_daemon_starts_once_from_many_threads() -> None:
    """Eight first requests at once start one thread."""
    running = Daemon([], lambda: None)
    barrier = threading.Barrier(8)

    def work(_: int) -> None:
        barrier.wait()
        running.start()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert ours() == ["tailwatch"]
    running.stop()
    assert ours() == []


def test_a_stopped_daemon_stays_stopped() -> None:
    """A late request does not start it again, in a fork child neither."""
    stopped = Daemon([], lambda: None)
    stopped.start()
    stopped.stop()
    stopped.start()
    stopped.forget()
    stopped.start()
    assert (ours(), stopped.running) == ([], False)


def test_a_daemon_that_cannot_start_is_no_error_of_the_host() -> None:
    """Where no thread can be made the failure is counted, and tried again with the next request."""
    failed: list[str] = []
    unlucky = Daemon([], lambda: failed.append("failed"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        unlucky.start()
    assert (failed, unlucky.running) == (["failed"], False)
    unlucky.start()
    assert unlucky.running
    unlucky.stop()


def test_a_failing_task_is_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again each time, others run on, and the log has one line."""
    monkeypatch.setattr(background, "WAKE_SECONDS", 0.001)
    failed, ran = [], []

    def broken() -> None:
        raise RuntimeError("broken")

    busy = Daemon([Task(broken, 0.0), Task(lambda: ran.append(1), 0.0)], lambda: failed.append(1))
    busy.start()
    until(lambda: len(failed) >= 3 and len(ran) >= 3)
    busy.stop()
    assert len([record for record in caplog.records if "background task failed" in record.getMessage()]) == 1


def test_there_is_one_lock_for_install() -> None:
    """install() from inside install() (a lazy import that installs) does not deadlock."""
    with install._lock:
        assert tailwatch.install(gc="observe") is tailwatch.current()


def test_what_stays_fixed_are_options() -> None:
    """A misspelt or renamed option in these sets would silently be adopted."""
    assert set(OPTIONS) >= session._FIXED | session._FIXED_PER_APP
