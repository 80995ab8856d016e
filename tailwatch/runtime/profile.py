"""``profile()``: a small sample of the traffic, profiled in a stage of its own.

Profilers slow down what they look at. A careful benchmark measures without one, and then profiles a few more requests:
this is the second stage. What tailwatch counts meanwhile is written beside the traces, so that it is separate from the
measured run, and everything is switched off again at the end.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from tailwatch.errors import NotInstalledError, OptionError, TailwatchError
from tailwatch.gc.idle_hooks import running_loop
from tailwatch.options.config import OPTIONS
from tailwatch.platform import VERSION
from tailwatch.runtime.install import current
from tailwatch.runtime.session import Watch
from tailwatch.tracing import ring_files

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"
EVENTS = 1 << 18
"""Events to record if ``trace_events`` is 0: 8 MiB during the stage."""

_LOOK_SECONDS = 0.02
_PATIENCE = 50
_running = threading.Lock()


@dataclass
class Profiled:
    """What a stage left behind.

    Attributes:
        path: the directory; manifest.json in it lists the files.
        requests: that ended in the stage.
        complete: whether they were as many as asked for; else the time was over first.
        files: in the directory, by name: what each is.
        notes: missing parts of the profile, a sentence each.
    """

    path: Path
    requests: int = 0
    complete: bool = False
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def profile(
    path: str | os.PathLike[str], *, requests: int = 20, seconds: float = 60.0, torch: bool | None = None
) -> Profiled:
    """Profile the next requests of this process (or of its group), and wait for them. Call it beside the traffic: from
    a thread of its own, or ``await asyncio.to_thread(tailwatch.profile, "out/")``.

    Args:
        path: a directory for what is found; made where it is not, and refused where it holds a profile.
        requests: until so many have ended.
        seconds: but no longer than this.
        torch: use the profiler of torch, of the thread that calls and of all kernels; None: where torch is loaded.

    Raises:
        OptionError: requests or seconds is no such number.
        TailwatchError: a profile is running already, there is one at ``path``, it cannot be written, or the thread that
            calls is an event loop's.
        NotInstalledError: install() was not called.
    """
    from pathlib import Path  # here: an ordinary process never profiles

    watch = current()
    _check(requests, seconds)
    target = Path(path)
    if not _running.acquire(blocking=False):
        raise TailwatchError("profile: another profile is running in this process; wait until it has ended")
    try:
        with _locked(target):
            return _stage(watch, target, requests, seconds, torch)
    finally:
        _running.release()


def _check(requests: int, seconds: float) -> None:
    if isinstance(requests, bool) or not isinstance(requests, int) or requests < 1:
        raise OptionError.of("requests", requests, "expected a number of requests, at least 1")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 86_400:
        raise OptionError.of("seconds", seconds, "expected seconds, above 0 and at most 86400")
    if running_loop() is not None:
        raise TailwatchError(
            "profile() blocks and would stop this event loop: await asyncio.to_thread(tailwatch.profile, …)"
        )


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """The directory for us alone, also where another process has its name."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise TailwatchError(f"profile: {target}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TailwatchError(f"profile: another process is writing a profile into {target}") from None
        if (target / MANIFEST).exists():
            raise TailwatchError(f"profile: {target} holds a profile already ({MANIFEST}); name another directory")
        yield
    finally:
        os.close(descriptor)


def _stage(watch: Watch, target: Path, requests: int, seconds: float, torch: bool | None) -> Profiled:
    made = Profiled(target)
    before, begun = watch.snapshot(), _clocks()
    with _recording(watch, made):
        with _torch(made, torch) as torch_facts:
            made.requests = _wait(watch, made, requests, seconds)
        made.complete = made.requests >= requests
        ended = _clocks()
        _write_trace(watch, made)
    _write_numbers(watch, made, before)
    _write_manifest(watch, made, requests, [begun, ended], torch_facts)
    return made


def _clocks() -> dict[str, int]:
    return {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}


def _ended(watch: Watch) -> int:
    in_flight, opened = watch.membership.load()
    return opened - in_flight


def _wait(watch: Watch, made: Profiled, requests: int, seconds: float) -> int:
    """Until so many have ended. Returns how many have."""
    first, until = _ended(watch), time.monotonic() + seconds
    while (found := _ended(watch) - first) < requests and time.monotonic() < until:
        if not _is_current(watch):
            made.notes.append("uninstall() was called during the profile")
            break
        time.sleep(_LOOK_SECONDS)
    return max(found, 0)


def _is_current(watch: Watch) -> bool:
    try:
        return current() is watch
    except NotInstalledError:
        return False


# ---- tailwatch's own events ----


@contextmanager
def _recording(watch: Watch, made: Profiled) -> Iterator[None]:
    """Events are recorded meanwhile, and afterwards as before."""
    ours = not watch.core.tracing and (why := _start(watch)) is None
    if not ours and not watch.core.tracing:
        made.notes.append(f"tailwatch recorded no events: {why}")
    try:
        yield
    finally:
        if ours and _is_current(watch):
            watch.tracing.stop()


def _start(watch: Watch) -> str | None:
    """None, or why not."""
    for _ in range(_PATIENCE):
        try:
            return watch.core.trace_start(EVENTS)
        except BlockingIOError:
            time.sleep(_LOOK_SECONDS)
    return "other processes are joining the group"


def _write_trace(watch: Watch, made: Profiled) -> None:
    if not watch.core.tracing:
        return
    merge = [made.path / "torch.json"] if "torch.json" in made.files else []
    try:
        watch.trace(made.path / "tailwatch.pftrace")
        made.files["tailwatch.pftrace"] = "requests, tokens, pauses and steps: open it in ui.perfetto.dev"
        _note_absent(watch, made)
        if merge:
            watch.trace(made.path / "together.json", format="json", merge=merge)
            made.files["together.json"] = "tailwatch.pftrace and torch.json on one clock: open it in ui.perfetto.dev"
    except TailwatchError as error:
        made.notes.append(str(error))


def _note_absent(watch: Watch, made: Profiled) -> None:
    """Which others of the group are not in the timeline."""
    if not (directory := watch.membership.directory):
        return
    recorded = {file.pid for file in ring_files.files_of(directory)}
    absent = [each.name for each in watch.snapshot().processes if each.lives and each.pid not in recorded]
    if absent:
        made.notes.append(f"not in tailwatch.pftrace, because trace_events is 0 there: {', '.join(absent)}")


# ---- torch ----


@contextmanager
def _torch(made: Profiled, wanted: bool | None) -> Iterator[dict[str, Any]]:
    """Its profiler at work. Yields its facts: version, CUDA, threads."""
    facts: dict[str, Any] = {}
    profiler = _torch_profiler(made, wanted, facts)
    if profiler is None:
        yield facts
        return
    profiler.start()
    try:
        yield facts
    finally:
        profiler.stop()
    try:
        profiler.export_chrome_trace(str(made.path / "torch.json"))
        made.files["torch.json"] = "the trace of torch: open it in ui.perfetto.dev"
    except Exception as error:
        made.notes.append(f"the trace of torch could not be written: {type(error).__name__}: {error}")


def _torch_profiler(made: Profiled, wanted: bool | None, facts: dict[str, Any]) -> Any:
    """One that has not been started; None: there is none, or it is not wanted."""
    if wanted is False or (wanted is None and "torch" not in sys.modules):
        return None
    try:
        from importlib import import_module

        torch: Any = import_module("torch")
        profiler: Any = import_module("torch.profiler")
    except ImportError as error:
        made.notes.append(f"torch was requested but cannot be imported: {error}")
        return None
    cuda = bool(torch.cuda.is_available())
    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if cuda else [])]
    facts |= {"version": str(torch.__version__), "cuda": cuda, "all_threads": True}
    try:
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        return profiler.profile(activities=activities, experimental_config=everywhere)
    except (AttributeError, TypeError):
        facts["all_threads"] = False
        made.notes.append("this version of torch records only the operators of the thread that called profile()")
        return profiler.profile(activities=activities)


# ---- what was found ----


def _write_numbers(watch: Watch, made: Profiled, before: Any) -> None:
    try:
        numbers = (watch.snapshot() - before).as_dict()
    except Exception as error:
        made.notes.append(f"the snapshot of the stage could not be taken: {type(error).__name__}: {error}")
        return
    _write(made, "snapshot.json", numbers, "tailwatch's numbers of this stage only: tailwatch doctor snapshot.json")


def _write_manifest(
    watch: Watch, made: Profiled, requests: int, window: list[dict[str, int]], torch_facts: dict[str, Any]
) -> None:
    manifest = {
        "tailwatch": VERSION,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "role": watch.config.role,
        "options": {name: str(getattr(watch.config, name)) for name in OPTIONS if name not in _KEPT_BACK},
        "requests": {"requested": requests, "ended": made.requests},
        "complete": made.complete,
        "from": window[0],
        "to": window[1],
        "torch": torch_facts or None,
        "files": dict(made.files),
        "notes": made.notes,
    }
    _write(made, MANIFEST, manifest, "this")


_KEPT_BACK = frozenset({"page_token", "otel", "dir"})


def _write(made: Profiled, name: str, content: Any, what: str) -> None:
    import json

    try:
        (made.path / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"profile: {made.path / name}: {error.strerror}") from error
    made.files[name] = what
