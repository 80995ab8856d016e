"""`accelerate(Model)`: a Pydantic stream class dumps the same JSON for a fraction of the time, and can be put back.

`Model.model_dump_json` is replaced by one that has the JSON of each *shape* that was seen: the classes of the objects
in the tree, their fields in order, which of them were set, the lengths of lists, and every value that is neither a
plain str nor a plain int. Strings and integers are written from the object of this very call; everything else is
compared with the shape. So nothing can be stale, and what is of another shape goes to the class's own method.

The class's own serialiser shows how a shape becomes JSON (see template_learner.py). It runs again for the first calls
of each shape and then for one in many: a serialiser of other code may change its result.

Pydantic's own serialisers write any text alike. Functions in Python need not: a class that is written by one is left
alone, unless accelerate() is given that the class looks at no text.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, cast

from tailwatch._hot import Plan, Plans
from tailwatch.errors import AlreadyInstalledError, OptionError
from tailwatch.sse.pydantic_tree import pydantic_base
from tailwatch.sse.template_learner import Student

_ERRORS_LIMIT = 16  # of our own code, then a class is left alone
_LEARNED_LIMIT = 65536  # characters of a first text: asking the serialiser many times about more would stall a server
_NAMED_LIMIT = 256  # fallbacks remembered as logged
_PLAIN = (type(None), bool, int, str)  # arguments that stay distinct for good

_logger = logging.getLogger("tailwatch")

OnFallback: TypeAlias = Callable[[str, str], object]

_listeners: list[OnFallback] = []
_all: weakref.WeakSet[Acceleration] = weakref.WeakSet()


def listen(listener: OnFallback) -> None:
    """Have it called as listener(shape, reason) for each fallback of any class, until unlisten(). Twice is once."""
    if listener not in _listeners:
        _listeners.append(listener)


def unlisten(listener: OnFallback) -> None:
    """Undo listen()."""
    if listener in _listeners:
        _listeners.remove(listener)


class Fallback(NamedTuple):
    """Why objects of a shape went to the class's own method.

    reason: "differs" (a text of ours was once not the class's; those since the comparison before may not have been
    either), "unsupported" (it holds what is not written here, such as a float, or a function in Python writes it),
    "shapes" (more shapes than there is room for: those learned go on), "error" (our own code failed).
    """

    shape: str
    reason: str


class Acceleration:
    """What accelerate() did to one class. Calling it, undo() or leaving it as a context manager undoes it.

    Attributes:
        model: the class.
        fallbacks: how often what happened, counted when it is found out and not for each call that follows from it.
        original: the method that the class had.
        replacement: the one it has now.
    """

    def __init__(
        self, model: type, compare_first: int, compare_every: int, on_fallback: OnFallback | None, trusted: bool
    ) -> None:
        self.model = model
        self.fallbacks: Counter[Fallback] = Counter()
        self._on_fallback = on_fallback
        self._logged: set[Fallback] = set()
        self._own = "model_dump_json" in vars(model)
        self.original: Callable[..., str] = cast(Any, model).model_dump_json
        self._undone = False
        self._learning = threading.Lock()
        self._trusted = trusted
        self._studied, self._student = _serializer_of(model), self._new_student()
        self._plans = Plans(model, self.original, self._learn, self._check, self._fail, compare_first, compare_every)
        self.replacement: Callable[..., str] = functools.update_wrapper(self._plans, self.original)
        self.replacement.__tailwatch__ = self  # type: ignore[attr-defined]
        cast(Any, model).model_dump_json = self.replacement
        _all.add(self)

    @property
    def active(self) -> bool:
        """Whether it still writes for the class."""
        return not self._plans.closed

    @property
    def shapes(self) -> list[str]:
        """Names of the shapes that it writes now."""
        return sorted({plan.name for plan in self._plans.plans() if plan.literal is not None and not plan.retired})

    def undo(self) -> str | None:
        """Put the class's own method back. A second call does nothing.

        Returns: None, or a sentence where other code replaced the method after us: then theirs stays, and ours,
        below it, hands everything to the class's own.
        """
        self._plans.close()
        undone, self._undone = self._undone, True
        if undone:
            return None
        if vars(self.model).get("model_dump_json") is self.replacement:
            self._put_back()
            return None
        return (
            f"{self.model.__qualname__}.model_dump_json was replaced again after accelerate(): "
            "that stays, and calls the class's own method through ours, which does nothing any more"
        )

    __call__ = undo

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "active" if self.active else "undone"
        return f"<Acceleration of {self.model.__qualname__}: {state}, {len(self.shapes)} shapes>"

    def after_fork(self) -> None:
        """In a child: another thread of the parent may have been learning, and is not there."""
        self._learning = threading.Lock()

    def _put_back(self) -> None:
        if self._own:
            cast(Any, self.model).model_dump_json = self.original
        else:
            del cast(Any, self.model).model_dump_json

    def _learn(self, model: Any, kwargs: dict[str, Any]) -> str:
        """An object that no plan fits: the class's own text, and what can be learned from it."""
        text = self.original(model, **kwargs)
        if self._learning.acquire(blocking=False):
            try:
                self._study(model, kwargs, text)
            except Exception as error:
                self._failed(error)
            finally:
                self._learning.release()
        return text

    def _study(self, model: Any, kwargs: dict[str, Any], text: str) -> None:
        if not all(type(value) in _PLAIN for value in kwargs.values()):
            self._fall_back(self.model.__name__, "unsupported")
        elif not self._plans.room(kwargs):
            self._fall_back(self.model.__name__, "shapes")
        elif type(text) is str and len(text) <= _LEARNED_LIMIT:
            serializer = _serializer_of(self.model)  # before: the class may be rebuilt meanwhile, by another thread
            if serializer is not self._studied:
                self._studied, self._student = serializer, self._new_student()
            self._add(kwargs, self._student.learn(model, kwargs, text), serializer)

    def _new_student(self) -> Student:
        return Student(self.model, self.original, overridden=not _is_pydantics(self.original), trusted=self._trusted)

    def _add(self, kwargs: dict[str, Any], plan: Plan, serializer: object) -> None:
        self._plans.add(kwargs, plan, serializer)
        if plan.literal is None:
            self._fall_back(plan.name, "unsupported")

    def _check(self, model: Any, kwargs: dict[str, Any], text: str, plan: Plan) -> str:
        """The class's own text is the one that is sent, whatever ours was."""
        original = self.original(model, **kwargs)
        if original != text and not plan.retired:
            plan.retire()
            self._fall_back(plan.name, "differs")
        return original

    def _fail(self, model: Any, kwargs: dict[str, Any], error: Exception) -> str:
        self._failed(error)
        return self.original(model, **kwargs)

    def _failed(self, error: Exception) -> None:
        self._fall_back(self.model.__name__, "error", f": {error!r:.200}")
        if sum(n for fallback, n in self.fallbacks.items() if fallback.reason == "error") >= _ERRORS_LIMIT:
            self._plans.close()

    def _fall_back(self, shape: str, reason: str, detail: str = "") -> None:
        fallback = Fallback(shape, reason)
        first = fallback not in self.fallbacks
        if reason in ("unsupported", "shapes") and not first:
            return  # found out again, after its plan had to make room
        if first and len(self.fallbacks) >= _NAMED_LIMIT:
            fallback = Fallback("other", reason)
        self.fallbacks[fallback] += 1
        listeners = list(dict.fromkeys((*filter(None, (self._on_fallback,)), *_listeners)))
        if first and not listeners:
            _log(fallback, detail)
        for listener in listeners:
            _call(listener, fallback)


def accelerate(
    model: type,
    *,
    compare_first: int = 16,
    compare_every: int = 1024,
    on_fallback: OnFallback | None = None,
    trust_serializers: bool = False,
) -> Acceleration:
    """Make `model.model_dump_json()` several times faster, with the same text.

    Functions in Python that take part in the writing may treat one text unlike another, which cannot be found out:

    - An object that one writes (`@model_serializer`, a `model_dump_json` of the class's own), and every object around
      it, goes to the class.
    - A field that one writes or leaves out (`@field_serializer`, `PlainSerializer`, `exclude_if`) is compared and not
      written: its objects are faster only where it holds few values.

    With `trust_serializers` all of these are written like any other, and the comparison of one text in `compare_every`
    is what guards them: until it finds a difference, up to `compare_every` - 1 wrong texts are sent. It guards, too,
    functions of a field that look at more than its value and its object, such as a global.

    Args:
        model: a Pydantic v2 model class. Its subclasses keep their own way, unless they are accelerated too.
        compare_first: how many texts of each shape are compared with the class's own at first.
        compare_every: after that one in so many is.
        on_fallback: called as on_fallback(shape, reason) for each fallback that is counted; what it raises is logged.
            Without it the first of each is logged, by the logger "tailwatch". Where tailwatch is installed, its metric
            counts them too, and its daemon logs them.
        trust_serializers: the author's word that functions in Python that write the objects look at no text: that they
            drop a field that is None or an empty list, and do not cut, replace or leave out by what a text holds.

    Raises:
        OptionError: it is no Pydantic v2 model class, a number is out of range, or another argument of a wrong type.
        AlreadyInstalledError: it is accelerated already.
    """
    _require_model(model)
    _require_number("compare_first", compare_first, 0)
    _require_number("compare_every", compare_every, 1)
    if on_fallback is not None and not callable(on_fallback):
        raise OptionError.of("on_fallback", on_fallback, "expected a callable that takes shape and reason, or None")
    if type(trust_serializers) is not bool:
        raise OptionError.of("trust_serializers", trust_serializers, "expected True or False")
    if (other := _accelerated(model)) is not None and other.model is model and other.active:
        raise AlreadyInstalledError(
            f"{model.__qualname__} is accelerated already: undo() that first, by the object that accelerate() returned"
        )
    return Acceleration(model, compare_first, compare_every, on_fallback, trust_serializers)


def _accelerated(model: type) -> Acceleration | None:
    """Whose method the class has, or has below wrappers around it (functools.wraps hands the mark on)."""
    found = getattr(vars(model).get("model_dump_json"), "__tailwatch__", None)
    return found if isinstance(found, Acceleration) else None


def _is_pydantics(method: Any) -> bool:
    """Whether it is BaseModel.model_dump_json as Pydantic wrote it, below replacements of ours."""
    while isinstance(ours := getattr(method, "__tailwatch__", None), Acceleration) and method is ours.replacement:
        method = ours.original
    return getattr(method, "__globals__", {}).get("__name__") == "pydantic.main"


def _serializer_of(model: Any) -> object:
    return getattr(model, "__pydantic_serializer__", None)


def _after_fork() -> None:
    for acceleration in _all:
        acceleration.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _require_model(model: object) -> None:
    expected = "expected a class made with Pydantic v2 (a subclass of pydantic.BaseModel)"
    if not isinstance(model, type):
        raise OptionError.of("model", model, f"{expected}, found an object that is no class")
    if pydantic_base(model) is None:
        is_v1 = any(base.__module__.startswith("pydantic.") for base in model.__mro__)
        raise OptionError.of("model", model, expected + ("; this one is Pydantic v1's" if is_v1 else ""))


def _require_number(option: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value < 2**63:
        raise OptionError.of(option, value, f"expected an int from {least} on")


def _call(listener: OnFallback, fallback: Fallback) -> None:
    try:
        listener(*fallback)
    except Exception:
        _logger.exception("accelerate: on_fallback failed")


def _log(fallback: Fallback, detail: str) -> None:
    level = logging.WARNING if fallback.reason in ("differs", "error") else logging.INFO
    meaning = {
        "differs": "its text was once not the class's own, nor perhaps those since it was last compared; "
        "the class writes it from now on",
        "unsupported": "it holds what is not written here, or a function in Python writes it; the class writes it",
        "shapes": "more shapes than there is room for; the class writes the others, those learned go on",
        "error": "our own code failed; the class wrote it",
    }[fallback.reason]
    _logger.log(level, "accelerate: %s: %s%s", fallback.shape, meaning, detail)
