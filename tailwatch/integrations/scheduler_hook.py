"""Follows the scheduler of the engine in this process: callables of C stand for its methods, for that instance alone,
and read each step off the objects that pass through them (csrc/python/stamp/scheduler_steps.c).

Nothing of ours is raised into the engine; what is not where it is expected is noted for the doctor, once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from tailwatch import _hot
from tailwatch.integrations.engine_steps import named
from tailwatch.integrations.kernel_compiles import KernelCompiles

if TYPE_CHECKING:
    from tailwatch.integrations.engine_steps import Following, Part

    View = Callable[[tuple[Any, ...], "dict[str, Any] | None", Any], Any]

_ABSENT = object()


class SchedulerHook:
    """The steps of one engine.

    Args:
        core: where they are recorded.
        note: called with a sentence for the doctor.
    """

    def __init__(self, core: _hot.Core, note: Callable[[str], object]) -> None:
        self._core = core
        self._note = note
        self._noted: set[str] = set()
        self._steps: _hot.SchedulerSteps | None = None
        self._scheduler: Callable[[], Any] = lambda: None
        self._replaced: list[_Replaced] = []
        self._compiles = KernelCompiles(self._compiled, self._note_once)

    def follow(self, engine: Any, following: Following) -> None:
        """Called before each step. A process's first scheduler is followed while it exists. May raise what the
        attributes of an engine do."""
        scheduler = following.scheduler(engine)
        if scheduler is None or self._scheduler() is scheduler:
            return
        if self._scheduler() is not None:
            self._note_once("a second engine in this process: only the first one's steps are split by cause")
            return
        self._put_back()  # of one that is gone
        module = type(scheduler).__module__
        kind = f"{named(module)}: {module}.{type(scheduler).__qualname__}"
        parts = [part for part in following.parts if not _is_of_none(scheduler, part.name)]
        methods = dict(_found(scheduler, part) for part in parts)
        missing = [part.name for part, method in methods.items() if method is None and not part.without]
        if missing:
            self._note_once(f"{kind} has no {' and no '.join(missing)}: its steps are not split by cause")
            return
        reader = None if following.reader is None else following.reader(scheduler)
        steps = _hot.SchedulerSteps(self._core, scheduler if reader is None else reader, _model_of(engine, following))
        self._steps, self._scheduler = steps, weakref.ref(scheduler)
        if reader is not None and hasattr(reader, "recorded_by"):
            reader.recorded_by(steps)
        for part, method in methods.items():
            if method is None:
                self._note_once(f"{kind} has no {part.name}: {part.without}")
            else:
                self._stand_around(steps, part, method, reader, scheduler)
        self._compiles.follow_loaded()

    def answered(self) -> int | None:
        """Requests of the batches that were answered since the last call; None: no scheduler is followed."""
        return None if self._steps is None else self._steps.answered()

    def undo(self) -> list[str]:
        """Take the callables off again. Returns what could not be undone, a sentence each."""
        if self._steps is not None:
            self._steps.stop()
        self._steps, self._scheduler, self._noted = None, lambda: None, set()
        return [*self._compiles.undo(), *self._put_back()]

    def _compiled(self, kernel: str, from_ns: int, to_ns: int) -> None:
        if self._steps is not None:
            self._steps.compiled(kernel, from_ns, to_ns)

    def _put_back(self) -> list[str]:
        replaced, self._replaced = self._replaced, []
        return [sentence for each in replaced if (sentence := each.put_back())]

    def _stand_around(
        self, steps: _hot.SchedulerSteps, part: Part, method: Callable[..., Any], reader: Any, scheduler: Any
    ) -> None:
        path, _, name = part.name.rpartition(".")
        owner = _at(scheduler, path)
        view = self._guarded(getattr(reader, part.view), part.name) if part.view else None
        ours: Any
        if reader is None or name in vars(owner) or getattr(method, "__self__", None) is not owner:
            ours = steps.around(part.what or name, method, view)
        else:
            ours = _for_one(owner, method, lambda same: steps.around(part.what or name, same, view))
            owner = type(owner)
        self._replaced.append(_Replaced(owner, name, ours))
        setattr(owner, name, ours)

    def _guarded(self, view: View, name: str) -> View:
        def guarded(args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Any:
            try:
                return view(args, kwargs, result)
            except Exception as error:
                self._note_once(f"what {name} has could not be read, it is not known: {type(error).__name__}: {error}")
                return None

        return guarded

    def _note_once(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self._note(sentence)


class _Replaced:
    """An attribute of an object, which it does not keep, as it was."""

    def __init__(self, owner: Any, name: str, ours: Any) -> None:
        self._owner = weakref.ref(owner)
        self._name, self._ours = name, ours
        self._before = vars(owner).get(name, _ABSENT)

    def put_back(self) -> str:
        """A sentence where it was replaced again since; else ""."""
        owner = self._owner()
        if owner is None:
            return ""
        if vars(owner).get(self._name) is not self._ours:
            name = self._name
            return f"{name} of the engine's scheduler was replaced by other code after us: ours inside it only hands on"
        if self._before is _ABSENT:
            delattr(owner, self._name)
        else:
            setattr(owner, self._name, self._before)
        return ""


def _at(scheduler: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        scheduler = getattr(scheduler, name, None)
    return scheduler


def _is_of_none(scheduler: Any, path: str) -> bool:
    """Whether what should have it is an attribute that is None."""
    above, _, held = path.rpartition(".")[0].rpartition(".")
    return bool(held) and getattr(_at(scheduler, above), held, _ABSENT) is None


def _method_of(scheduler: Any, path: str) -> Callable[..., Any] | None:
    method = _at(scheduler, path)
    return method if callable(method) else None


def _found(scheduler: Any, part: Part) -> tuple[Part, Callable[..., Any] | None]:
    """The part, by the name that this scheduler has for it, and its method."""
    method = _method_of(scheduler, part.name)
    if method is None and part.formerly and (method := _method_of(scheduler, part.formerly)) is not None:
        part = replace(part, name=part.formerly)
    return part, method


def _model_of(engine: Any, following: Following) -> str:
    """ "unknown" where it is not found."""
    try:
        return following.model(engine) or "unknown"
    except Exception:
        return "unknown"


def _for_one(owner: Any, method: Any, around: Callable[[Callable[..., Any]], Any]) -> Callable[..., Any]:
    """A method for its class that calls what stands around it, of that object only. An attribute of the object would
    keep it, or go on without it: it goes with its last user, as without us; some free the device's memory as they do.
    """
    function, of = method.__func__, weakref.ref(owner)
    ours = around(lambda *args, **kwargs: function(of(), *args, **kwargs))

    @wraps(function)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) if of() is self else function(self, *args, **kwargs)

    return call
