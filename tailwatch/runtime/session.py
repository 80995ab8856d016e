"""One process under observation, from install() to uninstall(): the only file that changes the process, and it can undo
it. Hooks and exporters meet here.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tailwatch import _hot, integrations, snapshots
from tailwatch.asgi import middleware
from tailwatch.asgi.otel_span import current_trace_id
from tailwatch.asgi.routes import Routes
from tailwatch.errors import OptionError
from tailwatch.export.otel import asked_for
from tailwatch.gc.coordinator import FREEZE_PATIENCE_SECONDS, GCCoordinator
from tailwatch.gc.hook import Freeze, GCHook
from tailwatch.group import server_workers, temp_dirs
from tailwatch.group.membership import GroupMember
from tailwatch.integrations.fast_sse import FastSSE
from tailwatch.integrations.nvtx_attach import ANCHOR_SECONDS, NVTXHook
from tailwatch.integrations.output_hook import OutputHook
from tailwatch.integrations.process_roles import role_of_process
from tailwatch.integrations.request_routing import Routing
from tailwatch.integrations.step_hook import StepHook
from tailwatch.options.config import Config, variable_of
from tailwatch.options.slo import parse_window
from tailwatch.platform import VERSION, parent_process
from tailwatch.runtime import core_pool, wiring
from tailwatch.runtime.announcement import Announcement
from tailwatch.runtime.background import Daemon, Task
from tailwatch.runtime.child_env import EnvironmentPatch
from tailwatch.runtime.load_signal import REFRESH_SECONDS, LoadMeter, LoadSignal
from tailwatch.runtime.manual import StreamContext, by_hand_variable, step_error
from tailwatch.runtime.own_log import OwnLog
from tailwatch.runtime.pause_logs import PauseLog, SlowLog
from tailwatch.runtime.wiring import ERROR_ASGI, ERROR_DAEMON, ERROR_GROUP, ERROR_POLICY, ERROR_RENDER
from tailwatch.snapshots.model import GCStatus
from tailwatch.stall.host import HostWatch
from tailwatch.tracing.recorder import Tracing
from tailwatch_boot import own_notes

if TYPE_CHECKING:
    from tailwatch.diagnose.finding import DiagnosisContext, Finding
    from tailwatch.export.otel.exporter import OTel
    from tailwatch.export.page import Page
    from tailwatch.export.prometheus.exposition import Exposition
    from tailwatch.serve.metrics_port import MetricsPort
    from tailwatch.tracing.perfetto import Written

logger = logging.getLogger("tailwatch")

_ROLE_WITH_APP = "api"
_MOST_WRAPPERS = 16
_FIXED = frozenset({"dir", "max_label_sets", "role", "metrics_port", "otel", "trace_events", "trace_on", "trace_keep"})
_FIXED_PER_APP = frozenset({"metrics_path", "trust_request_start", "orca", "server_timing", "sse_timing"})


class Watch:
    """What install() returns: one process under observation.

    Attributes:
        app: what to serve: the installed object itself, changed in place, or a wrapper for a bare callable.
        config: the options in force.
        core: the writer of this process's numbers.
    """

    def __init__(self, config: Config, *, automatic: bool) -> None:
        self._server_directory = server_workers.directory_for(config)
        config = replace(config, dir=self._server_directory or config.dir)
        self._own_directory = temp_dirs.directory() if config.trace_events and not config.dir else ""
        if self._own_directory:  # a trace outlives its process, and is read from outside: it needs a place
            config = replace(config, dir=self._own_directory)
        self.config: Config = config
        self.automatic: bool = automatic
        self.app: Any = None
        self.notes: list[str] = []
        self.routes: Routes = Routes(config.routes)
        self._served = asked_for(config.otel, os.environ)
        self.core: _hot.Core = core_pool.core_for(config, self.routes, served=self._served)
        self.core.exemplify(config.exemplars, current_trace_id)
        self.membership: GroupMember = GroupMember(self.core, config.dir, self._not_shared, config.engine)
        self.coordinator: GCCoordinator = GCCoordinator(
            self.core,
            config.gc,
            config.gc_memory_limit,
            self.membership,
            self._serves,
            self.notes.append,
            self._warn,
            self._pause_lengths,
        )
        self.gc: GCHook = self.coordinator.hook
        requests = (middleware.request_variable, by_hand_variable)
        self.host: HostWatch = HostWatch(self.core, config.stalls, self.gc.idle_gc.loops, self.notes.append, requests)
        self.tracing: Tracing = Tracing(self.core, self.membership, config, self._warn)
        self.fast_sse: FastSSE = FastSSE(self.core.count_fallback, self.notes.append)
        self.nvtx: NVTXHook = NVTXHook(self.core, config.nvtx, config.nvtx_tokens, self.notes.append)
        self.steps: StepHook = StepHook(self.core, integrations.stepping, self.notes.append)
        self.routing: Routing = Routing(
            integrations.choices(), middleware.current_stream, lambda: self.core.count_error(ERROR_ASGI)
        )
        self.outputs: OutputHook = OutputHook(
            integrations.outputs(),
            self.core,
            middleware.current_stream,
            lambda: self.core.count_error(ERROR_ASGI),
            self.notes.append,
        )
        self.history: snapshots.History = snapshots.History()
        self._keep_labels()
        self._own_log = OwnLog()
        self._announcement = Announcement(self, lambda: self.gc.policy, lambda: self.steps.names)
        self._records = snapshots.Records(self.core.address)
        self._pauses_read = 0
        self._pause_log = PauseLog(self._records, self.core, config.gc_warn_ms / 1e3, config.gc_log_all)
        self._slow_log = SlowLog(self._records, self.core, config.slow_gap_ms / 1e3)
        self.load: LoadMeter = LoadMeter(self.core, self.membership, lambda: self.config.slo.ttft)
        self.otel: OTel | None = wiring.make_otel(self, lambda: self.exposition.info())
        self._apps: list[weakref.ref[middleware.Attached]] = []  # each is held by its app, and goes with it
        self._heritage = EnvironmentPatch()
        self.port: MetricsPort = wiring.make_port(self, lambda: self.exposition, lambda: self.page, self._port_is_taken)
        self.notes += wiring.page_notes(config)
        self._warned_alone = self._port_is_the_environments = False
        self._inherited = False  # the app came with a fork: whether this child serves it is not known
        self._daemon = Daemon(self._tasks(), lambda: self.core.count_error(ERROR_DAEMON))

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<tailwatch {VERSION}: {self.memory_bytes / 2**20:.1f} MiB fixed, {config.max_label_sets} label sets, "
            f"gc={config.gc}, SLO {config.slo.text}>"
        )

    @cached_property
    def exposition(self) -> Exposition:
        """The metrics page; a process that serves none does not import what renders it."""
        return wiring.make_exposition(self, lambda: self.history.bytes + self.tracing.bytes)

    @cached_property
    def page(self) -> Page:
        """The live page, likewise."""
        return wiring.make_page(self)

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
        ``Snapshot.seconds`` is what it really covers.
        """
        now = self.membership.take()
        return now if window is None else self.history.window(now, parse_window(window))

    def load_signal(self) -> LoadSignal:
        """The load of the whole group, for routers. See tailwatch.load_signal()."""
        return self.load.read()

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
        self.core.set_front()
        stream = self.core.stream(model, route, arrival, request_id, trace_id)
        if engine is not None:
            stream.bind(engine)
        return StreamContext(stream, self.ended, "" if model == "unknown" else model)

    def step(self, name: str, *, batch: int = 1, waiting: int | None = None) -> _hot.Step:
        """One iteration of an engine in this process, around which its loop has a ``with``. See tailwatch.step()."""
        try:
            return self.core.step(name, batch, waiting)
        except (TypeError, ValueError, OverflowError):
            raise step_error(name, batch, waiting) from None

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
            TailwatchError: nothing is recorded (``trace_events=``), or the file cannot be written or a trace be merged.
        """
        return self.tracing.dump(os.fspath(path), format, merge=[os.fspath(each) for each in merge])

    def freeze(self) -> Freeze:
        """Collect, freeze, collect, on this thread. See tailwatch.freeze()."""
        return self.gc.freeze()

    def refreeze(self, *, timeout: float = FREEZE_PATIENCE_SECONDS) -> Freeze:
        """Unfreeze, then freeze, while no stream is in flight. See tailwatch.refreeze()."""
        return self.coordinator.refreeze(timeout)

    def gc_status(self) -> GCStatus:
        """What the collector's policy does in this process, and did; ``processes`` is that of the whole group."""
        own = snapshots.take([self.core.address]).processes[0].policy
        numbers = {each.name: getattr(own, each.name) for each in fields(own)}
        idle_gc = self.gc.idle_gc
        mode = idle_gc.mode if idle_gc.engaged else ""
        now: dict[str, str | int] = {"kind": self.gc.policy, "mode": mode, "why": idle_gc.why or self.coordinator.why}
        if mode == "slices":
            now.update(idle_gc.heap())
        return GCStatus(
            **{**numbers, **now},
            option=self.coordinator.option,
            measured=self.coordinator.measured,
            sentences=(*idle_gc.interference(), *self.gc.interference.sentences()),
            processes={process.name: process.policy for process in self.snapshot().processes if process.lives},
        )

    def doctor(self) -> list[Finding]:
        """Findings, the worst first."""
        from tailwatch.diagnose.rules import doctor

        return doctor(self.snapshot(), self.context())

    def context(self) -> DiagnosisContext:
        """What the doctor needs beside the numbers."""
        from tailwatch.runtime.doctor_context import context_of

        return context_of(self)

    # ---- install and undo ----

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
            self._warn(f"OTLP export, requested by OTEL_* variables, is off: {error}")
        else:
            self.core.on_request_end(self.otel.ended)

    def start(self) -> None:
        """Hook the collector, join the group, and take over what the server streams with."""
        self._open_log()
        self.membership.enter(self.config.role)
        if self.config.trace_events:
            self.tracing.start()
            logger.info("%s", self.tracing)
        if self.config.dir and not self._server_directory:  # another server that a worker starts is not of this one
            self._heritage.leave(variable_of("dir"), self.config.dir)
        self.nvtx.attach()
        self.host.start()
        self.coordinator.attach()
        self._start_otel()
        self.steps.attach()
        self.fast_sse.listen()
        if self.config.fast_sse:
            self.fast_sse.wrap_loaded(last=False)

    def _open_log(self) -> None:
        config = self.config
        if not config.quiet or config.gc_warn_ms or config.gc_log_all or config.slow_gap_ms or config.trace_events:
            self._own_log.open()

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
        self.core.set_front()
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
                f"the role stays {self.config.role!r}: requests were counted before {role!r} was detected"
            )
            return
        self.config = replace(self.config, role=role)
        self.core.rebind(role, self.routes.route_of, middleware.timed_send)
        if self.membership.joined:
            self.membership.enter(role)

    def adopt(self, config: Config) -> None:
        """Take over options given in code after Middleware or automatic installation: the arguments win."""
        differing = config.explicit.intersection(self.config.differing(config))
        keep = _FIXED | _FIXED_PER_APP if self._attached() else _FIXED
        fixed = sorted(differing & keep)
        if fixed:
            self.notes.append(
                f"install() ran after an automatic installation: {', '.join(fixed)} could not be changed any more"
            )
        changed = {name: getattr(config, name) for name in config.explicit - keep}
        self.config = replace(self.config, **changed)
        self.automatic = False
        self._open_log()
        self.core.configure(self.config.slo.as_core(), int(self.config.slow_gap_ms * 1e6))
        self.core.exemplify(self.config.exemplars, current_trace_id)
        self._pause_log.warn, self._pause_log.every = self.config.gc_warn_ms / 1e3, self.config.gc_log_all
        self._slow_log.slow = self.config.slow_gap_ms / 1e3
        self.routes.add(self.config.routes)
        self.membership.bind(self.config.engine)
        self.nvtx.adopt(self.config.nvtx, self.config.nvtx_tokens)
        self.host.adopt(self.config.stalls)
        self.coordinator.adopt(self.config.gc, self.config.gc_memory_limit)
        if self.config.fast_sse:
            self.fast_sse.wrap_loaded(last=False)
        else:
            self.notes += self.fast_sse.undo()
        self._keep_labels()
        if differing & {"page", "page_token"}:
            self.notes += wiring.page_notes(self.config)

    def stop(self) -> list[str]:
        """Undo everything. Returns what could not be undone, a sentence each."""
        self._daemon.stop()
        report = [sentence for attached in self._attached() if (sentence := attached.detach())]
        self.core.on_request_end(None)
        report += self.otel.stop() if self.otel is not None else []
        report += self.host.stop()
        report += self.coordinator.detach()
        report += self.steps.detach()
        self.nvtx.detach()
        report += self.routing.undo()
        report += self.outputs.undo()
        report += self.fast_sse.undo()
        self.fast_sse.unlisten()
        self.port.close()
        self._apps = []
        self._guarded(self._log_last, ERROR_DAEMON)
        self._own_log.close()
        self.tracing.stop()
        report += self.membership.leave()
        if self.config.dir:
            own_notes.forget(self.config.dir)
        if self._own_directory:
            temp_dirs.remove(self._own_directory)
        report += self._heritage.take_back()
        _hot.forget_frames()
        core_pool.keep(self.config, self.core, served=self._served)
        return report

    def after_fork(self) -> None:
        """In a child: its numbers start from zero, its daemon starts anew, now if the parent's ran: a child that serves
        nothing may be an engine (threading has put itself in order by then: it was imported before us)."""
        ran = self._daemon.running
        self.core.reset()
        self.membership.after_fork()
        self.coordinator.after_fork()
        self.tracing.after_fork()
        self.steps.after_fork()
        self.load.forget()
        self.nvtx.after_fork()
        self.history = snapshots.History()
        self._keep_labels()
        self._pause_log.cursor = self._slow_log.cursor = self._pause_log.short = 0
        self._inherited = self.app is not None
        if self._inherited:
            self.core.set_front()
        self._daemon.forget()
        for served in {"exposition", "page"} & vars(self).keys():
            getattr(self, served).after_fork()
        self.port.after_fork()
        if self.otel is not None:
            self.otel.after_fork()
            self.core.on_request_end(self.otel.ended)
        if ran:
            self._daemon.start()

    # ---- called by the hooks ----

    def _hook(self) -> middleware.Hook:
        return wiring.make_hook(
            self,
            self.routes,
            self.exposition,
            self.page,
            on_request=self._on_request,
            on_startup=lambda: self._guarded(self._on_startup),
            is_ready=self.membership.engines_are_ready,
            on_idle=self.coordinator.on_idle,
            carries=self._is_asked_for_requests,
        )

    def _is_asked_for_requests(self) -> bool:
        asks = self.otel is not None or self.host.asks_for_requests()
        return asks or self.routing.active() or self.outputs.active()

    def _tasks(self) -> list[Task]:
        """What the daemon does, in the order in which it does it."""
        tracing = self.tracing
        recording = [(tracing.settle, 0.25), (tracing.turn, 0.25), (tracing.look, 0.25), (tracing.tidy, 10.0)]
        tasks: list[tuple[Callable[[], object], float]] = [
            (self._pause_log.drain, 0.25),
            (self._slow_log.drain, 0.25),
            (self.fast_sse.listen, 1.0),
            (self.fast_sse.log_fallbacks, 1.0),
            (self.host.find_loops, 0.25),
            (self.coordinator.check, 1.0),
            (self.coordinator.turn, 0.25),
            (self.coordinator.commands.turn, 0.25),
            (self.membership.renew, 1.0),
            (lambda: self.host.works(self.membership.works_for_streams()), 0.25),  # what stops before is not seen
            (self._settle_role, 1.0),
            *(recording if self.config.trace_events else ()),
            (self.steps.wrap_loaded, 1.0),
            (self._follow_routing, 1.0),
            (self._announcement.turn, 1.0),
            (self.port.turn, 1.0),
            (self.load.refresh, REFRESH_SECONDS),
            (lambda: self.history.push(self.snapshot()), 5.0),
            *([(self.otel.turn, 1.0)] if self.otel else []),
            (self.nvtx.anchor, ANCHOR_SECONDS),
            (temp_dirs.remove_dead, 600.0),
        ]
        return [Task(run, every) for run, every in tasks]

    def _on_request(self) -> None:
        if self._daemon.start():
            self._guarded(self._join_server, ERROR_GROUP)
        self.host.use_loop()
        self.coordinator.on_request()

    def _join_server(self) -> None:
        """Join the other workers of this server, which a process may not find before it serves: a spawned
        one has run its main script before, and a forked one began as its master. What it counted comes along."""
        self._server_directory = self._server_directory or server_workers.directory_for(self.config)
        if self._server_directory and not self.config.dir:
            self.config = replace(self.config, dir=self._server_directory)
            self.membership.share_in(self._server_directory, self.config.role)

    def _keep_labels(self) -> None:
        """Only the page shows windows by model and route."""
        if self.config.page:
            self.history.keep_labels()

    def _guarded(self, act: Callable[[], object], where: int = ERROR_POLICY) -> None:
        try:
            act()
        except Exception:
            self.core.count_error(where)

    def ended(self, stream: _hot.Stream, model: str) -> None:
        """A stream by hand ended; model: that code has named."""
        otel = self.otel
        if otel is not None:
            self._guarded(lambda: otel.spans.ended(stream, None, model))
        if self.core.in_flight == 0:
            self.coordinator.on_idle()

    def _attached(self) -> list[middleware.Attached]:
        return [attached for each in self._apps if (attached := each()) is not None]

    def _serves(self) -> bool:
        """Whether it has an app of its own."""
        return bool(self._apps) and not self._inherited

    def _settle_role(self) -> None:
        """Servers name their processes late."""
        if not self._serves() and not self.core.opened and (role := role_of_process()) is not None:
            self.take_role(role)

    def _on_startup(self) -> None:
        self._daemon.start()
        self._guarded(self._join_server, ERROR_GROUP)
        if parent_process() is not None and self.membership.alone and not self._warned_alone:
            self._warned_alone = True
            self._warn(
                "this process was started by another one (a worker of several, or a reloader's child): /metrics and "
                "tailwatch.snapshot() cover this process alone"
            )
        if self.config.fast_sse:
            self.fast_sse.wrap_loaded()
        self._follow_routing()
        self.host.use_loop()
        self.coordinator.on_startup()

    def _pause_lengths(self) -> list[float]:
        pauses, self._pauses_read, _ = self._records.pauses(self._pauses_read, before_ns=_hot.now())
        return [pause.seconds for pause in pauses]

    def _port_is_taken(self, sentence: str) -> None:
        self.core.count_error(ERROR_RENDER)
        self._warn(sentence)

    def _leave_port(self) -> None:
        self.port.leave()
        self.notes.append(
            f"TAILWATCH_METRICS_PORT={self.port.number} was ignored: it applies to processes without an app"
        )

    def _follow_routing(self) -> None:
        """Which engine a request goes to matters where others' pauses are known, in the process that has the app."""
        if self.config.dir and self.app is not None:
            self.routing.wrap_loaded()
            self.outputs.wrap_loaded()

    def _not_shared(self, sentence: str) -> None:
        self.core.count_error(ERROR_GROUP)
        self._warn(sentence)

    def _warn(self, sentence: str) -> None:
        self.notes.append(sentence)
        logger.warning("tailwatch: %s", sentence)

    def _log_last(self) -> None:
        self._pause_log.drain(last=True)
        self._slow_log.drain()
        self.fast_sse.log_fallbacks()
