"""install() and uninstall(): one process has one Watch, whatever the number of its apps.

The module's functions are those of `tailwatch` itself, and what autoinstall calls in a server that was not changed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from tailwatch import _hot, snapshots
from tailwatch.errors import AlreadyInstalledError, NotInstalledError, OptionError
from tailwatch.gc.coordinator import FREEZE_PATIENCE_SECONDS
from tailwatch.gc.hook import Freeze
from tailwatch.integrations.process_roles import role_of_process
from tailwatch.options.config import Config
from tailwatch.platform import parent_process
from tailwatch.runtime import own_log
from tailwatch.runtime.load_signal import LoadSignal
from tailwatch.runtime.manual import StreamContext
from tailwatch.runtime.noop import NoopStep, NoopStream
from tailwatch.runtime.session import Watch
from tailwatch.snapshots.model import GCStatus

if TYPE_CHECKING:
    from typing_extensions import Unpack  # checkers have it; in typing since 3.11

    from tailwatch.diagnose.finding import Finding
    from tailwatch.options.signature import Options
    from tailwatch.tracing.perfetto import Written

logger = logging.getLogger("tailwatch")

_lock = threading.RLock()
_current: Watch | None = None
_was_installed = False
_fork_hook = False
_closers: list[Callable[[], None]] = []


class Middleware:
    """For servers that take an ASGI middleware class. It installs, or joins the existing installation. Options that
    differ from those in force are ignored and reported by the doctor. With a bad variable in the environment it
    forwards all requests unchanged, and logs the reason.

    Raises:
        OptionError: a bad option among its arguments.
        TypeError: ``app`` is not an ASGI app.
    """

    def __init__(self, app: Any, **options: Unpack[Options]) -> None:
        self.app = app
        self._serve: Any
        try:
            self._serve = _autoinstalled(app, {**options}, wrap=True)
        except OptionError as error:
            if error.source is None:  # written in code, where it can be mended
                raise
            logger.warning("tailwatch: %s; the server runs without tailwatch", error)
            self._serve = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI entry point."""
        await self._serve(scope, receive, send)


def _autoinstalled(app: Any, options: dict[str, object], *, wrap: bool) -> Any:
    global _current
    with _lock:
        config = Config.load(app=True, **options)
        if _current is None:
            _current = _begin(config, app, options, automatic=True, wrap=wrap)
            return _current.app
        if ignored := _overruled(_current, config, options):
            _current.notes.append(f"Middleware was added after an installation: its {', '.join(ignored)} had no effect")
        return app if not wrap and _current.watches(app) else _current.attach(app, wrap=wrap)


def autoinstall_app(app: Any) -> Any:
    """install(app) as automatic installation does it: the options come from the environment, and what is
    installed already keeps its own. Returns what to serve.

    Raises:
        OptionError: a bad TAILWATCH_* variable.
        TypeError: the app is not an ASGI 3 app.
    """
    return _autoinstalled(app, {}, wrap=False)


def autoinstall_process(role: str = "") -> None:
    """install() as automatic installation does it, in a process without an app (yet); role "": by its title or name.

    Raises:
        OptionError: a bad TAILWATCH_* variable.
    """
    global _current
    with _lock:
        if _current is None:
            _current = _begin(Config.load(app=False), None, {}, automatic=True)
        _current.steps.wrap_loaded()
        _current.take_role(role or role_of_process() or ("main" if parent_process() is None else "worker"))


def when_uninstalled(close: Callable[[], None]) -> None:
    """Have the next uninstall() call close(), which must not raise; the same one is called once."""
    if close not in _closers:
        _closers.append(close)


def _begin(config: Config, app: Any, options: dict[str, object], *, automatic: bool, wrap: bool = False) -> Watch:
    """A Watch at work around an app (None: without one); when anything of that fails, nothing is left behind."""
    watch = Watch(config, automatic=automatic)
    try:
        watch.start()
        if app is not None:
            watch.attach(app, wrap=wrap)
        watch.open_port(app, by_argument=options.get("metrics_port") is not None)
    except BaseException:
        watch.stop()
        raise
    _follow_forks()
    if app is None:
        watch.start_daemon()
    return watch


def _follow_forks() -> None:
    global _fork_hook
    if not _fork_hook:
        os.register_at_fork(before=_before_fork, after_in_parent=own_log.after_fork, after_in_child=_after_fork)
        _fork_hook = True


def _before_fork() -> None:
    if _current is not None:
        own_log.before_fork()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    own_log.after_fork()
    if _current is not None:
        _current.after_fork()


def install(app: Any = None, **options: Unpack[Options]) -> Watch:
    """Watch this process, and stamp every token that ``app`` streams.

    Args:
        app: an ASGI app, before or after its start-up; None for a process without one.
        options: see ``tailwatch.Options``; each is also an environment variable TAILWATCH_<NAME>.

    Returns:
        The process's Watch. Called again with the same options it is the same one, with one more app.

    Raises:
        OptionError: a bad option.
        AlreadyInstalledError: called again with other options.
    """
    global _current
    given: dict[str, object] = {**options}
    with _lock:
        config = Config.load(app=app is not None, **given)
        if _current is None:
            _current = _begin(config, app, given, automatic=False)
            return _current
        if _current.automatic:
            _current.adopt(config)
        else:
            _refuse_difference(_current, config, given)
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
        Parts that could not be undone and were made inert instead, a sentence each; empty if all was undone.
        Without an install() before, the call has no effect.

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
    """The core that sends NVTX ranges in this process; None without an attached tool, or with nvtx="off"."""
    return _current.core if _current is not None and _current.core.nvtx_attached else None


def snapshot(window: str | float | None = None) -> snapshots.Snapshot:
    """All numbers since install(), or of the last window ("5m"). See Watch.snapshot."""
    return current().snapshot(window)


def why(*, request: str | None = None, last: str | float | None = None) -> list[snapshots.SlowGap]:
    """The late tokens that are kept, the most delayed first, each with the causes that add up to its lateness
    (``.causes``): the last ones, and the longest of each minute, hour and the run.

    request: only of requests whose id or trace id begins so. last: only of the last "10m", "90s", or so many seconds.

    Raises:
        NotInstalledError: install() was not called.
        OptionError: last is no such time.
    """
    from tailwatch.diagnose.why import late_tokens
    from tailwatch.options.slo import parse_window

    return late_tokens(snapshot(), request=request, last=None if last is None else float(parse_window(last)))


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
        return StreamContext(cast("_hot.Stream", NoopStream(arrival)))
    return current().stream(
        model=model, route=route, arrival=arrival, request_id=request_id, trace_id=trace_id, engine=engine
    )


def step(name: str, *, batch: int = 1, waiting: int | None = None) -> _hot.Step:
    """One iteration of an engine: ``with tailwatch.step("decode", batch=32, waiting=queued):`` around it.

    Records the length of steps, their overlap with pauses of this process by cause, and the host gap: the time from the
    end of a step to the start of the next one, of this thread or name, while work was waiting. ``waiting``, or
    ``s.waiting`` before the block ends, gives that. Without it, the time counts as unknown (``Step.unknown_gap``).

    Args:
        name: what kind of step it is. Seven are counted by name in a process, further ones are "other".
        batch: requests in it. 0: it ran nothing; it is no step, and its time belongs to the gap.
        waiting: requests that it leaves with work to do, in its batch or queued; 0: none, the engine is idle then, and
            stalls of the thread are not watched for until its next step.

    ``batch`` and ``waiting`` are attributes of what ``with`` gives, too, and count as they are at the end. Steps may
    nest; what is raised inside goes on its way. The same object may be entered again, which saves making one. After
    uninstall() it does nothing.

    Raises:
        OptionError: name is not a str, or batch or waiting is not a number of requests.
        NotInstalledError: install() was never called.
    """
    if _current is None and _was_installed:
        return cast("_hot.Step", NoopStep(name, batch, waiting))
    return current().step(name, batch=batch, waiting=waiting)


def trace(
    path: str | os.PathLike[str], *, format: str = "perfetto", merge: Sequence[str | os.PathLike[str]] = ()
) -> Written:
    """Write what was recorded as a file for ui.perfetto.dev; not from an event loop. See Watch.trace."""
    return current().trace(path, format=format, merge=merge)


def freeze() -> Freeze:
    """Collect, freeze, collect, on this thread. Returns what it did and took.

    Raises:
        NotInstalledError: install() was not called.
    """
    return current().freeze()


def refreeze(*, timeout: float = FREEZE_PATIENCE_SECONDS) -> Freeze:
    """Unfreeze, collect, freeze, collect, on this thread: objects that died while they were frozen are freed.

    It takes a full collection of the whole heap, so it waits up to ``timeout`` seconds until no stream is in flight.
    On the thread of an event loop it does not wait, because no stream could end meanwhile:
    ``await asyncio.to_thread(tailwatch.refreeze)``.

    Raises:
        BusyError: streams are in flight; nothing was done.
        NotInstalledError: install() was not called.
    """
    return current().refreeze(timeout=timeout)


def gc_status() -> GCStatus:
    """The state of the collector's policy in this process: slices by idle slot, their cost, interference."""
    return current().gc_status()


def diagnose() -> list[Finding]:
    """Findings, the worst first; each ends in an option or a command."""
    return current().doctor()
