"""install() and uninstall(): the only file that changes the process, and it can undo it.

Hooks and exporters meet here. One process has one Watch, whatever the number of its apps.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import operator
import os
import platform
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from tailwatch import _hot, integrations, snapshots
from tailwatch.asgi import middleware
from tailwatch.asgi.otel_span import current_trace_id
from tailwatch.asgi.response_headers import Annotator
from tailwatch.asgi.routes import Routes
from tailwatch.diagnose.rules import DiagnosisContext, Finding, doctor, headline
from tailwatch.errors import AlreadyInstalledError, BusyError, NotInstalledError, OptionError
from tailwatch.export import orca
from tailwatch.export.otel.exporter import OTel, asked_for
from tailwatch.export.page import Page
from tailwatch.export.prometheus import app_registry_cache
from tailwatch.export.prometheus.exposition import Exposition, Response, serve_http
from tailwatch.gc import remote_commands
from tailwatch.gc.hook import Freeze, GCHook
from tailwatch.gc.idle import SAFETY_NET, GCStatus
from tailwatch.group import temp_dirs
from tailwatch.group.membership import Company
from tailwatch.integrations.fast_sse import FastSSE
from tailwatch.integrations.nvtx_attach import ANCHOR_SECONDS, NVTXHook
from tailwatch.integrations.process_roles import role_of_process
from tailwatch.integrations.request_routing import Routing
from tailwatch.integrations.step_hook import StepHook
from tailwatch.options.config import Config, variable_of
from tailwatch.options.slo import parse_window
from tailwatch.platform import VERSION
from tailwatch.runtime.background import Daemon, Task
from tailwatch.runtime.child_env import Heritage
from tailwatch.runtime.load_signal import REFRESH_SECONDS, LoadMeter, LoadSignal
from tailwatch.runtime.noop import InertStep, InertStream
from tailwatch.runtime.pause_logs import PauseLog, SlowLog, asked_level
from tailwatch.serve.metrics_port import MetricsPort
from tailwatch.tracing.recorder import Tracing

if TYPE_CHECKING:
    from tailwatch.tracing.perfetto import Written

logger = logging.getLogger("tailwatch")

_ERROR_ASGI, _ERROR_GC_HOOK, _ERROR_POLICY, _ERROR_DAEMON, _ERROR_RENDER, _ERROR_REGISTRY = range(6)
_DECLINED = {
    reason: snapshots.DROPS.index(f"protobuf_{reason}")
    for reason in (app_registry_cache.FAMILY, app_registry_cache.SLOW)
}
_GOODPUT_WINDOW = 60
FREEZE_PATIENCE_SECONDS = 5.0
_SILENCE_SECONDS = 0.005
_ROLE_WITH_APP = "api"
_MOST_WRAPPERS = 16
_LEAST_TOKEN = 16  # characters
_FIXED = frozenset({"dir", "max_label_sets", "role", "metrics_port", "otel", "trace", "trace_on", "trace_keep"})
_FIXED_PER_APP = frozenset({"metrics_path", "trust_request_start", "orca", "server_timing", "sse_timing"})
_lock = threading.RLock()
_current: Watch | None = None
_was_installed = False
_spare_cores: dict[tuple[int, bool], _hot.Core] = {}  # by label sets and OTLP, each free for the next install()
_fork_hook = False
_closers: list[Callable[[], None]] = []


class Watch:
    """What install() returns: one process under observation.

    Attributes:
        app: what to serve: the installed object itself, changed in place, or a wrapper for a bare callable.
        config: the options in force.
        core: the writer of this process's numbers.
    """

    def __init__(self, config: Config, *, door: bool) -> None:
        self._own_directory = temp_dirs.directory() if config.trace and not config.dir else ""
        if self._own_directory:  # a trace outlives its process, and is read from outside: it needs a place
            config = replace(config, dir=self._own_directory)
        self.config = config
        self.door = door
        self.app: Any = None
        self.notes: list[str] = []
        self.routes = Routes(config.routes)
        self._served = asked_for(config.otel, os.environ)
        self.core = _core_for(config, self.routes)
        self.gc = GCHook(self.core, config.gc, self._warn)
        self.gc.out_of_band.ceiling.ceiling = config.gc_ceiling
        self.core.exemplify(config.exemplars, current_trace_id)
        self.company = Company(self.core, config.dir, self._warn, config.engine)
        self.tracing = Tracing(self.core, self.company, config, self._warn)
        self.fast_sse = FastSSE(self.core.count_fallback, self.notes.append)
        self.nvtx = NVTXHook(self.core, config.nvtx, config.nvtx_tokens, self.notes.append)
        self.steps = StepHook(self.core, integrations.stepping, self.notes.append)
        self.routing = Routing(
            integrations.choices(), middleware.current_stream, lambda: self.core.count_error(_ERROR_ASGI)
        )
        self.history = snapshots.History()
        self._records = snapshots.Records(self.core.address)
        self._pause_log = PauseLog(self._records, self.core, config.gc_warn_ms / 1e3, config.gc_log_all)
        self._slow_log = SlowLog(self._records, self.core, config.slow_ms / 1e3)
        self._load = LoadMeter(self.core, self.company, lambda: self.config.slo.ttft)
        self.exposition = Exposition(
            self.snapshot,
            version=VERSION,
            python=platform.python_version(),
            slo=lambda: self.config.slo.text,
            extra_bytes=self.history.bytes + self.tracing.bytes,
            goodput_window=_GOODPUT_WINDOW,
            on_registry_error=lambda: self.core.count_error(_ERROR_REGISTRY),
            histograms=lambda: self.config.exposition,
            on_declined=lambda reason: self.core.count_drop(_DECLINED[reason]),
            load=self._load.gauges,
        )
        self.page = Page(
            self.snapshot,
            lambda now, seconds: self.history.window(now, seconds),
            lambda window: headline(window, self.context()),
            lambda: self.config.slo.text,
            VERSION,
            lambda: self.config.page_token if self.config.page else None,
            self._load.read,
        )
        self.otel = self._make_otel()
        self._apps: list[weakref.ref[middleware.Attached]] = []  # each is held by its app, and goes with it
        self._heritage = Heritage()
        self.port = MetricsPort(
            config.metrics_port,
            lambda port: serve_http(
                port, self.exposition, on_error=lambda: self.core.count_error(_ERROR_RENDER), page=self.page
            ),
            lambda: config.dir if self.company.joined else "",
            self.notes.append,
            self._port_is_taken,
        )
        self._orders = self._take_orders()
        self._note_page()
        self._note_ceiling()
        self._said_without = False
        self._said_alone = self._port_is_the_environments = False
        self._inherited = False  # the app came with a fork: whether this child serves it is not known
        self._daemon = Daemon(
            [
                Task(self._pause_log.drain, 0.25),
                Task(self._slow_log.drain, 0.25),
                Task(self.fast_sse.listen, 1.0),
                Task(self.fast_sse.tell, 1.0),
                Task(self._check_gc, 1.0),
                Task(self._turn_policy, 0.25),
                Task(self._orders.turn, 0.25),
                Task(self.company.renew, 1.0),
                Task(self._settle_role, 1.0),
                *(self._trace_tasks() if config.trace else ()),
                Task(self.steps.sweep, 1.0),
                Task(self._follow_routing, 1.0),
                Task(self.port.turn, 1.0),
                Task(self._load.refresh, REFRESH_SECONDS),
                Task(self._remember, 5.0),
                *([Task(self.otel.turn, 1.0)] if self.otel else []),
                Task(self.nvtx.anchor, ANCHOR_SECONDS),
                Task(temp_dirs.sweep, 600.0),
            ],
            lambda: self.core.count_error(_ERROR_DAEMON),
        )

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<tailwatch {VERSION}: {self.memory_bytes / 2**20:.1f} MiB fixed, {config.max_label_sets} label sets, "
            f"gc={config.gc}, SLO {config.slo.text}>"
        )

    # ---- what users ask ----

    @property
    def accelerated(self) -> tuple[str, ...]:
        """Classes and functions of the server that ``fast_sse`` serialises for, dotted names."""
        return self.fast_sse.names

    @property
    def memory_bytes(self) -> int:
        """Memory fixed at install, in bytes, once all label sets are in use; a stream in flight takes 5 to 8 KiB beside
        it."""
        return self.core.reserved + self.history.bytes + self.tracing.bytes

    def snapshot(self, window: str | float | None = None) -> snapshots.Snapshot:
        """All numbers of this process since install, or of the last ``window`` ("5m", "90s", seconds).

        A window is answered from readings kept every 5 s (the last minute) or every minute (the last hour);
        ``Snapshot.seconds`` says what it really covers.
        """
        now = self.company.take()
        return now if window is None else self.history.window(now, parse_window(window))

    def load_signal(self) -> LoadSignal:
        """The load of the whole group, for routers. See tailwatch.load_signal()."""
        return self._load.read()

    def stream(
        self,
        *,
        model: str = "unknown",
        route: str = "stream",
        arrival: int | None = None,
        request_id: str = "",
        trace_id: str = "",
        engine: str | int | None = None,
    ) -> StreamContext:
        """A request stamped by hand; ``arrival`` in monotonic ns, now by default; ``engine``: the number or name of the
        one that serves it, where the group has several (see ``bind``).

        Raises:
            ValueError: ``engine`` is no name.
        """
        self._on_request()
        stream = self.core.stream(model, route, arrival, request_id, trace_id)
        if engine is not None:
            stream.bind(engine)
        return StreamContext(self, stream)

    def step(self, name: str, *, batch: int = 1, waiting: int | None = None) -> _hot.Step:
        """One iteration of an engine in this process, around which its loop says ``with``. See tailwatch.step()."""
        try:
            return self.core.step(name, batch, waiting)
        except (TypeError, ValueError, OverflowError):
            raise _step_error(name, batch, waiting) from None

    def trace(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "perfetto",
        merge: Sequence[str | os.PathLike[str]] = (),
    ) -> Written:
        """Write what was recorded, of the whole group, as a file for ui.perfetto.dev ("json": Chrome's format). It is
        replaced whole; recording goes on. Returns what went into it, and what was lost before.

        ``merge``: traces of torch, JAX or viztracer, which are put onto the same clock.

        It returns when the file is whole, and other threads run meanwhile; an event loop does not: there,
        ``await asyncio.to_thread(tailwatch.trace, path)``.

        Raises:
            TailwatchError: nothing is recorded (``trace=``), or it cannot be written, or a trace cannot be merged.
        """
        return self.tracing.dump(os.fspath(path), format, merge=[os.fspath(each) for each in merge])

    def freeze(self, *, again: bool = False, timeout: float = FREEZE_PATIENCE_SECONDS) -> Freeze:
        """Collect, freeze, collect, on this thread; again: also what was frozen before. See tailwatch.freeze()."""
        if again:
            self._wait_for_silence(timeout)
        return self.gc.freeze(again=again)

    def gc_status(self) -> GCStatus:
        """What the collector's policy does in this process, and did; ``processes`` is that of the whole group."""
        own = snapshots.take([self.core.address]).processes[0].policy
        group = {process.name: process.policy for process in self.snapshot().processes if process.lives}
        names = ("slices", "passes", "moved", "freed", "seconds", "predicted_seconds", "pass_seconds", "pass_freed")
        numbers = {name: getattr(own, name) for name in (*names, "freezes", "rounds", "ceilings")}
        status = replace(self.gc.status, **numbers, calls=own.drift, processes=group)
        return status if status.mode == "sweep" else replace(status, unfrozen=own.unfrozen or 0)

    def doctor(self) -> list[Finding]:
        """What the numbers say, the worst first."""
        return doctor(self.snapshot(), self.context())

    def context(self) -> DiagnosisContext:
        """What the doctor needs to know beside the numbers."""
        state = self.gc.state
        return DiagnosisContext(
            gc_policy=self.config.gc,
            freeze_done=bool(state.done),
            freeze_wanted=self.gc.waiting and state.gave_up,
            foreign_freezes=self.gc.foreign_freezes,
            gc_enabled=gc.isenabled(),
            thresholds=gc.get_threshold(),
            python_version=sys.version_info[:3],
            unknown_environment=self.config.unknown_environment,
            memory_bytes=self.memory_bytes,
            fast_sse=self.config.fast_sse,
            accelerated=self.accelerated,
            notes=list(self.notes),
        )

    # ---- install and undo ----

    def _make_otel(self) -> OTel | None:
        if not asked_for(self.config.otel, os.environ):
            return None
        return OTel(
            self.config.otel,
            self.snapshot,
            lambda: "" if self.company.alone else self.company.directory or None,
            middleware.current_request,
            info=self.exposition.info,
            version=VERSION,
            count_drop=lambda reason: self.core.count_drop(reason),
            note=self.notes.append,
        )

    def _start_otel(self) -> None:
        """What only the OTEL_* variables ask for, and cannot be had, is no error of install()."""
        if self.otel is None:
            return
        try:
            self.otel.start()
        except OptionError as error:
            if self.config.otel is not None:
                raise
            self.otel.stop()
            self.otel = None
            self._warn(f"OTEL_* variables ask for OTLP: {error}")
        else:
            self.core.follow(self.otel.spans.ended)

    def start(self) -> None:
        """Hook the collector, join the group, and take over what the server streams with."""
        self.company.enter(self.config.role)
        if self.config.trace:
            self.tracing.start(loud=not self.door)
            logger.log(asked_level(), "%s", self.tracing)
        if self.config.dir:
            self._heritage.leave(variable_of("dir"), self.config.dir)
        self.nvtx.attach()
        if self.config.gc != "off":
            self.gc.attach()
        self.gc.tell()
        self._start_otel()
        self.steps.attach()
        self.fast_sse.listen()
        if self.config.fast_sse:
            self.fast_sse.sweep(last=False)

    def open_port(self, app: Any, *, by_argument: bool) -> None:
        """Serve the metrics on ``metrics_port``, on the loopback address. One that the environment gives every process,
        and that is not free, is no error of any of them; one asked for here is: OptionError."""
        if not self.port.number:
            return
        self._port_is_the_environments = not by_argument
        if by_argument:
            self.port.open()
        elif app is None:
            self.port.wait()
        else:
            self._leave_port()

    def start_daemon(self) -> None:
        """For a process without an app: no request will start it."""
        self._daemon.start()

    def attach(self, app: Any, *, wrap: bool = False) -> Any:
        """Put the stamping layer around an app; ``wrap`` leaves the object itself alone. Returns what to serve."""
        attached = middleware.attach(app, self._hook(), wrap=wrap)
        if attached not in self._attached():
            self._apps = [weakref.ref(each) for each in (*self._attached(), attached)]
        self._inherited = False
        if self.app is None:
            self.app = attached.app
            self.take_role(_ROLE_WITH_APP)
            if not self.core.opened:
                self.gc.start_over()
            if self._port_is_the_environments:
                self._leave_port()
        return attached.app

    def watches(self, app: Any) -> bool:
        """Whether the layer is on this app, or on one that it wraps as ``app``."""
        known = [attached.app for attached in self._attached()]
        for _ in range(_MOST_WRAPPERS):
            if app is None or any(app is each for each in known):
                break
            app = getattr(app, "app", None)
        return app is not None and any(app is each for each in known)

    def take_role(self, role: str) -> None:
        """What this process has turned out to be, unless it was named, or has already been seen as something else."""
        if "role" in self.config.explicit or self.config.role == role:
            return
        if self.core.opened:
            self.notes.append(
                f"requests were counted before this process was seen to be {role!r}: it stays {self.config.role!r}"
            )
            return
        self.config = replace(self.config, role=role)
        self.core.rebind(role, self.routes.route_of, middleware.timed_send)
        if self.company.joined:
            self.company.enter(role)

    def adopt(self, config: Config) -> None:
        """Take over options given in code after a door (Middleware) had installed: the arguments win."""
        differing = config.explicit.intersection(self.config.differing(config))
        keep = _FIXED | _FIXED_PER_APP if self._attached() else _FIXED
        fixed = sorted(differing & keep)
        if fixed:
            self.notes.append(
                f"install() came after a door had installed: {', '.join(fixed)} could no longer be changed there"
            )
        changed = {name: getattr(config, name) for name in config.explicit - keep}
        self.config = replace(self.config, **changed)
        self.door = False
        self.core.configure(self.config.slo.as_core(), int(self.config.slow_ms * 1e6))
        self.core.exemplify(self.config.exemplars, current_trace_id)
        self._pause_log.warn, self._pause_log.every = self.config.gc_warn_ms / 1e3, self.config.gc_log_all
        self._slow_log.slow = self.config.slow_ms / 1e3
        self.routes.add(self.config.routes)
        self.company.bind(self.config.engine)
        self.nvtx.adopt(self.config.nvtx, self.config.nvtx_tokens)
        self._adopt_policy(self.config.gc)
        self.gc.out_of_band.ceiling.ceiling = self.config.gc_ceiling
        if differing & {"gc", "gc_ceiling"}:
            self._note_ceiling()
        self._adopt_fast_sse()
        if differing & {"page", "page_token"}:
            self._note_page()

    def stop(self) -> list[str]:
        """Undo everything. Returns what could not be undone, a sentence each."""
        self._daemon.stop()
        report = [sentence for attached in self._attached() if (sentence := attached.detach())]
        report += self._stop_otel()
        self._orders.file.close()
        report += self.gc.detach()
        report += self.steps.detach()
        self.nvtx.detach()
        report += self.routing.undo()
        report += self.fast_sse.undo()
        self.fast_sse.unlisten()
        self.port.close()
        self._apps = []
        self._guarded(self._log_last, _ERROR_DAEMON)()
        self.tracing.stop()
        report += self.company.leave()
        if self._own_directory:
            temp_dirs.remove(self._own_directory)
        report += self._heritage.take_back()
        _hot.forget_frames()
        _spare_cores[self.config.max_label_sets, self._served] = self.core
        return report

    def _stop_otel(self) -> list[str]:
        self.core.follow(None)
        return self.otel.stop() if self.otel is not None else []

    def after_fork(self) -> None:
        """In a child: its numbers start from zero, its daemon starts anew, now if the parent's ran: a child that serves
        nothing may be an engine (threading has put itself in order by then: it was imported before us)."""
        ran = self._daemon.running
        self.core.reset()
        self.company.after_fork()
        self.gc.after_fork()
        self._orders.after_fork()
        self.tracing.after_fork()
        self.steps.after_fork()
        self._load.forget()
        self.nvtx.after_fork()
        self.history = snapshots.History()
        self._pause_log.cursor = self._slow_log.cursor = self._pause_log.short = 0
        self._inherited = self.app is not None
        self._daemon.forget()
        self.exposition.after_fork()
        self.page.after_fork()
        self.port.after_fork()
        if self.otel is not None:
            self.otel.after_fork()
            self.core.follow(self.otel.spans.ended)
        if ran:
            self._daemon.start()

    # ---- called by the hooks ----

    def _hook(self) -> middleware.Hook:
        return middleware.Hook(
            core=self.core,
            routes=self.routes,
            trust_request_start=self.config.trust_request_start,
            metrics=self.exposition.respond,
            snapshot=self._snapshot_answer,
            page=self.page,
            metrics_path=self.config.metrics_path,
            on_request=self._on_request,
            on_startup=self._guarded(self._on_startup),
            on_idle=self._on_idle,
            on_error=lambda: self.core.count_error(_ERROR_ASGI),
            carries=lambda: self.otel is not None or self.routing.active(),
            annotator=self._annotator(),
        )

    def _trace_tasks(self) -> list[Task]:
        tracing = self.tracing
        return [
            Task(tracing.settle, 0.25),
            Task(tracing.turn, 0.25),
            Task(tracing.look, 0.25),
            Task(tracing.tidy, 10.0),
        ]

    def _snapshot_answer(self, accept: str, accept_encoding: str) -> Response:
        told = {"snapshot": self.snapshot().as_dict(), "context": self.context().as_dict()}
        body = json.dumps({**told, "directory": self.company.directory}).encode()
        return Response("application/json", "", tuple(body[i : i + 65536] for i in range(0, len(body), 65536)))

    def _note_page(self) -> None:
        token, on = self.config.page_token, self.config.page
        if token and not on:
            self.notes.append("page_token was given, but page is off: nothing is served at /tailwatch")
        elif token and len(token) < _LEAST_TOKEN:
            self.notes.append(
                f"page_token has {len(token)} characters: who tries finds it; `openssl rand -hex 16` makes a better one"
            )

    def _annotator(self) -> Annotator | None:
        """None: nothing is asked for, and nothing stands before the server's send."""
        config = self.config
        if config.orca == "off" and not (config.server_timing or config.sse_timing):
            return None
        return Annotator(
            load=None if config.orca == "off" else lambda form: orca.report(self._load.read(), form),
            load_header=orca.HEADER,
            load_format_header=orca.FORMAT_HEADER,
            load_form="" if config.orca == "request" else config.orca,
            server_timing=config.server_timing,
            sse_timing=config.sse_timing,
            on_error=lambda: self.core.count_error(_ERROR_ASGI),
        )

    def _on_idle(self) -> None:
        if self.gc.waiting:  # every request that ends alone comes by here
            self._guarded(self.gc.on_idle)()
        if self.gc.out_of_band.engaged:
            self._guarded(self.gc.out_of_band.on_idle)()
        if self._orders.waiting:
            self._orders.moment()

    def _on_request(self) -> None:
        self._daemon.start()
        if self.gc.out_of_band.engaged:
            self.gc.out_of_band.use_loop()

    def _guarded(self, act: Callable[[], None], where: int = _ERROR_POLICY) -> Callable[[], None]:
        def guarded() -> None:
            try:
                act()
            except Exception:
                self.core.count_error(where)

        return guarded

    def ended(self, stream: _hot.Stream) -> None:
        """A stream by hand ended."""
        if self.otel is not None:
            self._guarded(lambda: cast("OTel", self.otel).spans.ended(stream, None))()
        self.idle()

    def idle(self) -> None:
        """A stream ended; when none is left the collector's policy may act."""
        if self.core.in_flight == 0:
            self._on_idle()

    def _attached(self) -> list[middleware.Attached]:
        return [attached for each in self._apps if (attached := each()) is not None]

    @property
    def _serves(self) -> bool:
        """Whether it has an app of its own."""
        return bool(self._apps) and not self._inherited

    def _settle_role(self) -> None:
        """Servers name their processes late."""
        if not self._serves and not self.core.opened and (role := role_of_process()) is not None:
            self.take_role(role)

    def _on_startup(self) -> None:
        self._daemon.start()
        if parent_process() is not None and self.company.alone and not self._said_alone:
            self._said_alone = True
            self._warn(
                "another process started this one (one of several workers, or a reloader's): /metrics and "
                "tailwatch.snapshot() tell of this process alone"
            )
        if self.config.fast_sse:
            self.fast_sse.sweep()
        self._follow_routing()
        self.gc.on_startup()

    def _port_is_taken(self, sentence: str) -> None:
        self.core.count_error(_ERROR_RENDER)
        self._warn(sentence)

    def _leave_port(self) -> None:
        self.port.leave()
        self.notes.append(f"TAILWATCH_METRICS_PORT={self.port.number} was ignored: it is for processes without an app")

    def _follow_routing(self) -> None:
        """Which engine a request goes to matters where others' pauses are known, in the process that has the app."""
        if self.config.dir and self.app is not None:
            self.routing.sweep()

    def _warn(self, sentence: str) -> None:
        self.notes.append(sentence)
        logger.warning("tailwatch: %s", sentence)

    def _log_last(self) -> None:
        self._pause_log.drain(last=True)
        self._slow_log.drain()
        self.fast_sse.tell()

    def _adopt_policy(self, policy: str) -> None:
        if policy == self.gc.policy:
            return
        self.notes += self.gc.adopt(policy)
        if policy == "off":
            self.notes += self.gc.detach()
        else:
            self.gc.attach()
        if self.gc.lags and self._nobody_waits():
            self.gc.on_idle()

    def _adopt_fast_sse(self) -> None:
        if self.config.fast_sse:
            self.fast_sse.sweep(last=False)
        else:
            self.notes += self.fast_sse.undo()

    def _check_gc(self) -> None:
        if self.config.gc != "off" and not self.gc.verify():
            self.core.count_error(_ERROR_GC_HOOK)
        self.gc.look_for_freeze()
        self.gc.expire(self._freeze_when_quiet())

    # ---- the policy of processes that nobody gives moments ----

    def _nobody_waits(self) -> bool:
        """Whether no stream is in flight that would stand still with this process: its own; of a process that has none,
        such as an engine, those of its group."""
        if self.core.opened or self._serves or not self.company.joined:
            return self.core.in_flight == 0
        return self.company.load()[0] == 0

    def _sees_requests(self) -> bool:
        """Whether it would see one that waits: it has had some, or serves, or its group has."""
        return self._serves or self.core.load()[1] > 0

    def _turn_policy(self) -> None:
        """Moments of the daemon's, and what is to be forced. Four times a second."""
        out_of_band = self.gc.out_of_band
        if not out_of_band.engaged:
            return
        out_of_band.ceiling.look(time.monotonic())
        out_of_band.turn(self._nobody_waits)
        out_of_band.step_together(self.core.peers() > 0)
        if self._sees_requests():
            if out_of_band.is_due and self._nobody_waits():
                out_of_band.on_idle(daemon=True)
        elif not self.core.steps_ended and not out_of_band.has_loop and out_of_band.is_due:
            self._say_without_moments()

    def _say_without_moments(self) -> None:
        if not self._said_without:
            self._said_without = True
            self._warn(
                "gc='out-of-band': no request, no engine step and no event loop was seen in this process, so nobody "
                f"knows when nobody waits: the interpreter collects here by itself, each {SAFETY_NET} new objects"
            )

    def _wait_for_silence(self, timeout: float) -> None:
        """Raises BusyError where streams are in flight until then. Who runs an event loop on this thread cannot wait
        for its streams."""
        until = time.monotonic() + timeout
        while not self._nobody_waits():
            looping = asyncio._get_running_loop() is not None
            if looping or time.monotonic() >= until:
                in_flight = self.core.in_flight or self.company.load()[0]
                waited = (
                    "this is the thread of an event loop, where nobody can wait for them: "
                    "await asyncio.to_thread(tailwatch.freeze, again=True)"
                    if looping
                    else f"there was no moment without any for {timeout:g} s: try later, or with a longer timeout="
                )
                raise BusyError(f"freeze(again=True): streams in flight that would stand still: {in_flight}; {waited}")
            time.sleep(_SILENCE_SECONDS)

    def _take_orders(self) -> remote_commands.Orders:
        def path() -> str:
            wanted = self.config.gc not in ("off", "observe")
            name = remote_commands.name_of(self.core.file) if wanted else ""
            return os.path.join(self.company.directory, name) if name and self.company.directory else ""

        out_of_band = self.gc.out_of_band
        means = remote_commands.Means(
            nobody_waits=self._nobody_waits,
            act=self._carry_out,
            begin_round=out_of_band.begin_round,
            round_over=out_of_band.round_over,
            hand_over=out_of_band.call_soon,
            answer=self.core.policy_answer,
            failed=lambda: self.core.count_error(_ERROR_POLICY),
        )
        return remote_commands.Orders(remote_commands.OrderFile(path, self.core.count_ignored), means)

    def _carry_out(self, verb: str) -> tuple[float, int]:
        if verb == remote_commands.FREEZE:
            done = self.gc.freeze(again=True)
            return done.seconds, done.collected
        began = time.monotonic()
        freed = self.gc.out_of_band.whole_pass()
        return time.monotonic() - began, freed

    def _note_ceiling(self) -> None:
        if self.config.gc_ceiling and self.config.gc != "out-of-band":
            self.notes.append(
                f"gc_ceiling={str(self.config.gc_ceiling)!r} has no effect with gc={self.config.gc!r}: it is for "
                "gc='out-of-band', whose collections it forces"
            )

    def _freeze_when_quiet(self) -> int:
        """A process without streams of its own, such as an engine, asks its group whether any is in flight. Returns how
        many requests it has worked for."""
        opened = self.core.opened
        if opened or self._serves or not self.gc.waiting:
            return opened
        in_flight, opened = self.company.load()
        if opened and not in_flight:
            self._guarded(lambda: self.gc.on_idle(opened))()
        return opened

    def _remember(self) -> None:
        self.history.push(self.snapshot())


class StreamContext:
    """``with tailwatch.stream(...) as s`` and ``async with``: ends the stream as the block ends."""

    __slots__ = ("_stream", "_watch")

    def __init__(self, watch: Watch | None, stream: _hot.Stream) -> None:
        self._watch = watch
        self._stream = stream

    def __enter__(self) -> _hot.Stream:
        return self._stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._stream.end(error)
        if self._watch is not None:
            self._watch.ended(self._stream)

    async def __aenter__(self) -> _hot.Stream:
        return self._stream

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)


class Middleware:
    """For servers that take an ASGI middleware class. It installs, or joins what is installed, and never raises for
    options that differ from those in force: it says so to the doctor. With a bad variable in the environment it lets
    everything through, and logs why.

    Raises:
        OptionError: a bad option among its arguments.
        TypeError: ``app`` is no ASGI app.
    """

    def __init__(self, app: Any, **options: object) -> None:
        self.app = app
        try:
            self._serve = _through_door(app, options, wrap=True)
        except OptionError as error:
            if error.source is None:  # written in code, where it can be mended
                raise
            logger.warning("tailwatch: %s; the server runs without tailwatch", error)
            self._serve = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI entry point."""
        await self._serve(scope, receive, send)


def _through_door(app: Any, options: dict[str, object], *, wrap: bool) -> Any:
    global _current
    with _lock:
        config = Config.load(app=True, **options)
        if _current is None:
            _current = _begin(config, app, options, door=True, wrap=wrap)
            return _current.app
        if ignored := _overruled(_current, config, options):
            _current.notes.append(f"Middleware came second: its {', '.join(ignored)} had no effect")
        return app if not wrap and _current.watches(app) else _current.attach(app, wrap=wrap)


def app_door(app: Any) -> Any:
    """install(app) as a server's door does it: the options come from the environment, and what is installed already
    keeps its own. Returns what to serve.

    Raises:
        OptionError: a bad TAILWATCH_* variable.
        TypeError: this is no ASGI 3 app.
    """
    return _through_door(app, {}, wrap=False)


def process_door(role: str) -> None:
    """install() as a door does it, in a process without an app, or without one yet, that looks like ``role``.

    Raises:
        OptionError: a bad TAILWATCH_* variable.
    """
    global _current
    with _lock:
        if _current is None:
            _current = _begin(Config.load(app=False), None, {}, door=True)
        _current.steps.sweep()
        _current.take_role(role)


def when_uninstalled(close: Callable[[], None]) -> None:
    """Have the next uninstall() call close(), which must not raise; the same one is called once."""
    if close not in _closers:
        _closers.append(close)


def _core_for(config: Config, routes: Routes) -> _hot.Core:
    """A writer from zero. A segment stays mapped while the process lives: one of this size that an earlier install()
    has left is used again."""
    slo, slow_ns = config.slo.as_core(), int(config.slow_ms * 1e6)
    served = asked_for(config.otel, os.environ)
    core = _spare_cores.pop((config.max_label_sets, served), None)
    if core is None:
        return _hot.Core(
            config.role, config.max_label_sets, slo, slow_ns, routes.route_of, middleware.timed_send, served
        )
    core.reset()
    core.streamed()
    core.configure(slo, slow_ns)
    core.rebind(config.role, routes.route_of, middleware.timed_send)
    return core


def _begin(config: Config, app: Any, options: dict[str, object], *, door: bool, wrap: bool = False) -> Watch:
    """A Watch at work around an app (None: without one); when anything of that fails, nothing is left behind."""
    watch = Watch(config, door=door)
    try:
        watch.start()
        if app is not None:
            watch.attach(app, wrap=wrap)
        watch.open_port(app, by_argument=options.get("metrics_port") is not None)
    except BaseException:
        watch.stop()
        raise
    _follow_forks()
    asked = config.gc_warn_ms or config.gc_log_all or config.slow_ms
    logger.log(asked_level() if asked else logging.INFO, "%s", repr(watch)[1:-1])
    if app is None:
        watch.start_daemon()
    return watch


def _follow_forks() -> None:
    global _fork_hook
    if not _fork_hook:
        os.register_at_fork(after_in_child=_after_fork)
        _fork_hook = True


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    if _current is not None:
        _current.after_fork()


def install(app: Any = None, **options: object) -> Watch:
    """Watch this process, and stamp every token that ``app`` streams.

    Args:
        app: an ASGI app, before or after its start-up; None for a process without one.
        options: see Config; each is also an environment variable TAILWATCH_<NAME>.

    Returns:
        The process's Watch. Called again with the same options it is the same one, with one more app.

    Raises:
        OptionError: a bad option.
        AlreadyInstalledError: called again with other options.
    """
    global _current
    with _lock:
        config = Config.load(app=app is not None, **options)
        if _current is None:
            _current = _begin(config, app, options, door=False)
            return _current
        if _current.door:
            _current.adopt(config)
        else:
            _refuse_difference(_current, config, options)
        watch = _current
        if app is not None:
            watch.attach(app)
        return watch


def _overruled(watch: Watch, config: Config, options: dict[str, object]) -> list[str]:
    """Names of the options given here that differ from those in force."""
    return [name for name in watch.config.differing(config) if options.get(name) is not None]


def _refuse_difference(watch: Watch, config: Config, options: dict[str, object]) -> None:
    if differing := _overruled(watch, config, options):
        was = ", ".join(f"{name}={watch.config.shown(name)}" for name in differing)
        raise AlreadyInstalledError(
            f"install() was called before with {was}; call uninstall() first to change {', '.join(differing)}"
        )


def uninstall() -> list[str]:
    """Put everything back as it was before install().

    Returns:
        What could not be undone and became inert instead, a sentence each; empty when nothing is left.
        Without an install() before, nothing happens.

    stream() gives streams that do nothing from now on. The memory of the numbers stays mapped, as snapshots and
    kept Watches may read it; the next install() with the same ``max_label_sets`` starts from zero in it.
    """
    global _current, _was_installed
    with _lock:
        watch, _current = _current, None
        closers, _closers[:] = list(_closers), []
        report = watch.stop() if watch is not None else []
        _was_installed = _was_installed or watch is not None
    for close in closers:
        close()
    for sentence in report:
        logger.warning("tailwatch: %s", sentence)
    return report


def current() -> Watch:
    """The Watch of this process.

    Raises:
        NotInstalledError: install() was not called.
    """
    if _current is None:
        raise NotInstalledError("tailwatch is not installed in this process: call tailwatch.install(app) first")
    return _current


def nvtx_core() -> _hot.Core | None:
    """What tells an NVTX tool in this process; None where none listens or is to be told."""
    return _current.core if _current is not None and _current.core.nvtx_told else None


def snapshot(window: str | float | None = None) -> snapshots.Snapshot:
    """All numbers since install(), or of the last window ("5m"). See Watch.snapshot."""
    return current().snapshot(window)


def load_signal() -> LoadSignal:
    """How loaded this server is, in absolute terms, for routers: streams running and waiting now, its healthy
    concurrency, headroom, and the TTFT that a request admitted now would see. Of the whole group, where there is one.

    A few microseconds: counts are of the moment, the healthy concurrency is looked for every 2 s by the daemon
    (``LoadSignal.age``).

    Raises:
        NotInstalledError: install() was not called.
    """
    return current().load_signal()


def stream(
    *,
    model: str = "unknown",
    route: str = "stream",
    arrival: int | None = None,
    request_id: str = "",
    trace_id: str = "",
    engine: str | int | None = None,
) -> StreamContext:
    """A request stamped by hand, ``with`` or ``async with``. See Watch.stream. After uninstall() it does nothing.

    Raises:
        NotInstalledError: install() was never called.
    """
    if _current is None and _was_installed:
        return StreamContext(None, cast("_hot.Stream", InertStream(arrival)))
    return current().stream(
        model=model, route=route, arrival=arrival, request_id=request_id, trace_id=trace_id, engine=engine
    )


def step(name: str, *, batch: int = 1, waiting: int | None = None) -> _hot.Step:
    """One iteration of an engine: ``with tailwatch.step("decode", batch=32, waiting=queued):`` around it.

    Kept are how long steps take, what of it coincided with pauses of this process, by cause, and the host gap: the time
    from the end of a step to the begin of the next one, of this thread or name, while work was waiting. Whether it was
    is what you say: ``waiting``, or ``s.waiting`` before the block ends. Not said, it is not known, and that time is
    called nothing (``Step.unknown_gap``).

    Args:
        name: what kind of step it is. Seven are told apart in a process, further ones are "other".
        batch: requests in it. 0: it ran nothing; it is no step, and its time belongs to the gap.
        waiting: requests that it leaves with work to do, in its batch or queued; 0: none, the engine is idle then.

    ``batch`` and ``waiting`` are attributes of what ``with`` gives, too, and count as they are at the end. Steps may
    nest; what is raised inside goes on its way. The same object may be entered again, which saves making one. After
    uninstall() it does nothing.

    Raises:
        OptionError: name is no text, batch or waiting no number of requests.
        NotInstalledError: install() was never called.
    """
    if _current is None and _was_installed:
        return cast("_hot.Step", InertStep(name, batch, waiting))
    return current().step(name, batch=batch, waiting=waiting)


def _step_error(name: object, batch: object, waiting: object) -> OptionError:
    if not isinstance(name, str):
        return OptionError.of("name", name, "expected a text, what kind of step it is")
    if not _is_count(batch):
        return OptionError.of("batch", batch, "expected a number of requests")
    return OptionError.of("waiting", waiting, "expected a number of requests, or None: not known")


def _is_count(value: object) -> bool:
    """Whether C takes it: any whole number of a C long."""
    try:
        return 0 <= operator.index(cast("SupportsIndex", value)) < 1 << 63
    except TypeError:
        return False


def trace(
    path: str | os.PathLike[str], *, format: str = "perfetto", merge: Sequence[str | os.PathLike[str]] = ()
) -> Written:
    """Write what was recorded as a file for ui.perfetto.dev; not from an event loop. See Watch.trace."""
    return current().trace(path, format=format, merge=merge)


def freeze(*, again: bool = False, timeout: float = FREEZE_PATIENCE_SECONDS) -> Freeze:
    """Collect, freeze, collect, on this thread. Returns what it did and took.

    again: unfreeze first, so that what died while it was frozen is freed: a pass over the whole heap. Only while no
    stream is in flight: it waits ``timeout`` seconds for such a moment. On the thread of an event loop it does not
    wait, as nobody's stream could end: ``await asyncio.to_thread(tailwatch.freeze, again=True)``.

    Raises:
        BusyError: again, and streams are in flight; nothing was done.
        NotInstalledError: install() was not called.
    """
    return current().freeze(again=again, timeout=timeout)


def gc_status() -> GCStatus:
    """What the collector's policy does in this process, and did: slices by what gave the moment, their cost, drift."""
    return current().gc_status()


def diagnose() -> list[Finding]:
    """What the numbers say, the worst first; each finding ends in an option or a command."""
    return current().doctor()
