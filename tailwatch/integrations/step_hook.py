"""Counts the iterations of an engine whose code does not mark them: it stands around the engine's own method.

Nothing of ours is raised into the engine, and no attribute of it is relied on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

from tailwatch import _hot
from tailwatch.integrations.engine_steps import RankStep
from tailwatch.integrations.scheduler_hook import SchedulerHook

if TYPE_CHECKING:
    from tailwatch.integrations.engine_steps import EngineStep, Following

    Undo = Callable[[], "str | None"]


class StepHook:
    """The engine's methods that count as steps in this process.

    Args:
        core: where they are counted.
        known: gives the methods of the servers that are loaded by now.
        note: called with a sentence for the doctor.
    """

    def __init__(
        self, core: _hot.Core, known: Callable[[], Iterable[EngineStep | RankStep]], note: Callable[[str], object]
    ) -> None:
        self._core = core
        self._known = known
        self._note = note
        self._schedulers = SchedulerHook(core, note)
        self._undo: dict[str, Undo] = {}
        self._ranks: set[str] = set()  # of those, what is no step of an engine
        self._unread: set[str] = set()
        self._lock = threading.Lock()
        self._attached = False

    @property
    def names(self) -> tuple[str, ...]:
        """What is counted, dotted names."""
        return tuple(name for name in self._undo if name not in self._ranks)

    def attach(self) -> None:
        """Stand around what is loaded by now; wrap_loaded() finds the rest."""
        self._attached = True
        self.wrap_loaded()

    def wrap_loaded(self) -> None:
        """Stand around what was loaded since. Never raises; called once a second, by the daemon."""
        if not self._attached or not self._lock.acquire(blocking=False):
            return
        try:
            for step in self._known():
                if step.name in self._undo:
                    continue
                if (home := step.home()) is not None:
                    self._undo[step.name] = self._replace(step, home)
                elif absent := step.absent:
                    self._note_once(f"{step.name} absent", absent)
        except Exception as error:
            self._note_once("wrap_loaded", f"engine steps are not counted: {type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def detach(self) -> list[str]:
        """Put the methods back. Returns what could not be undone, a sentence each."""
        self._attached = False
        with self._lock:
            undos, self._undo = list(self._undo.values()), {}
        return [*self._schedulers.undo(), *(sentence for undo in reversed(undos) if (sentence := undo()))]

    def after_fork(self) -> None:
        """In a child: the lock may have been held by a thread that is not here."""
        self._lock = threading.Lock()

    def _replace(self, step: EngineStep | RankStep, home: Any) -> Undo:
        original = vars(home)[step.method]
        calls = _Calls()
        if isinstance(step, RankStep):
            self._ranks.add(step.name)
            ours, is_kept = self._around_rank(step, calls, original), False
        else:
            ours, is_kept = self._around_step(step, calls, original), step.kept
        setattr(home, step.method, ours)

        def undo() -> str | None:
            calls.stopped = True
            if vars(home).get(step.method) is not ours:
                return f"{step.name} was replaced by other code after us: ours inside it only hands on"
            setattr(home, step.method, original)
            kept = is_kept and calls.any
            return f"{step.name} is held by the engine that runs: ours only hands on" if kept else None

        return undo

    def _around_rank(self, step: RankStep, calls: _Calls, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def entered(worker: Any, /, *args: Any, **kwargs: Any) -> Any:
            number = 0 if calls.stopped else self._enter(step, worker, args, kwargs)
            try:
                return original(worker, *args, **kwargs)
            finally:
                if number:
                    self._core.rank_leaves(number)

        return entered

    def _enter(self, step: RankStep, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        try:
            rank = step.read(worker, args, kwargs)
            return 0 if rank is None else self._core.rank_enters(*rank)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._note_once(step.name, f"what {step.name} was called with could not be read, {step.without}: {reason}")
            return 0

    def _around_step(self, step: EngineStep, calls: _Calls, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def counted(engine: Any, /, *args: Any, **kwargs: Any) -> Any:
            made = self._open(step, calls, engine)
            if made is None:
                return original(engine, *args, **kwargs)
            with made:
                result = original(engine, *args, **kwargs)
                self._describe(made, step, engine, args, kwargs, result)
            return result

        return counted

    def _open(self, step: EngineStep, calls: _Calls, engine: Any) -> _hot.Step | None:
        if calls.stopped:
            return None
        calls.any = True
        if step.following is not None:
            self._follow(step.following, engine, step.name)
        try:
            return self._core.step(step.method)
        except MemoryError:
            return None

    def _follow(self, following: Following, engine: Any, name: str) -> None:
        try:
            self._schedulers.follow(engine, following)
        except Exception as error:
            self._note_once(f"{name} followed", f"its scheduler cannot be followed: {type(error).__name__}: {error}")

    def _describe(
        self, made: _hot.Step, step: EngineStep, engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        try:
            made.batch, made.waiting = step.read(engine, args, kwargs, result)
            if step.queues and (answered := self._schedulers.answered()) is not None:
                made.batch = answered
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._note_once(
                step.name, f"the batch of {step.name} could not be read, it counts as one request: {reason}"
            )

    def _note_once(self, name: str, sentence: str) -> None:
        if name not in self._unread:
            self._unread.add(name)
            self._note(sentence)


class _Calls:
    """Whether a method of ours was called, and whether it still counts."""

    __slots__ = ("any", "stopped")

    def __init__(self) -> None:
        self.any = self.stopped = False
