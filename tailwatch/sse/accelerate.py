"""`accelerate(Model)`: a Pydantic stream class dumps the same JSON for a fraction of the time, and can be put back.

`Model.model_dump_json` is replaced by one that knows the JSON of each *shape* that was seen: the classes of the objects
in the tree, their fields in order, which of them were set, the lengths of lists, and every value that is neither a
plain str nor a plain int. Strings and integers are written from the object of this very call; everything else is
compared with the shape. So nothing can be stale, and what is of another shape goes to the class's own method.

How a shape becomes JSON is asked of the class's own serialiser (see learning.py). It is asked again about the first
calls of each shape and then about one in many: a serialiser of somebody else's may change its mind.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, cast

from tailwatch._hot import Plan, Plans
from tailwatch.errors import AlreadyInstalledError, OptionError
from tailwatch.sse.learning import Student
from tailwatch.sse.tree import pydantic_base

_ERRORS_LIMIT = 16  # of our own code, then a class is left alone
_LEARNED_LIMIT = 65536  # characters of a first text: asking the serialiser many times about more would stall a server
_NAMED_LIMIT = 256  # fallbacks remembered as logged
_PLAIN = (type(None), bool, int, str)  # arguments that can be told apart for good

_logger = logging.getLogger("tailwatch")


class Fallback(NamedTuple):
    """Why objects of a shape went to the class's own method.

    reason: "differs" (a text of ours was once not the class's), "unsupported" (it holds what is not written here, such
    as a float), "shapes" (more shapes than there is room for), "error" (our own code failed).
    """

    shape: str
    reason: str


class Acceleration:
    """What accelerate() did to one class. Calling it, undo() or leaving it as a context manager undoes it.

    Attributes:
        model: the class.
        fallbacks: how often what happened, counted when it is found out and not for each call that follows from it.
    """

    def __init__(
        self, model: type, compare_first: int, compare_every: int, on_fallback: Callable[[str, str], object] | None
    ) -> None:
        self.model = model
        self.fallbacks: Counter[Fallback] = Counter()
        self._on_fallback = on_fallback
        self._logged: set[Fallback] = set()
        self._own = "model_dump_json" in vars(model)
        self._original: Callable[..., str] = cast(Any, model).model_dump_json
        self._undone = False
        self._learning = threading.Lock()
        self._student = Student(model, self._original)
        self._plans = Plans(model, self._original, self._learn, self._check, self._fail, compare_first, compare_every)
        self._replacement = _replacement(self._original, self._plans)
        self._replacement.__tailwatch__ = self  # type: ignore[attr-defined]
        cast(Any, model).model_dump_json = self._replacement

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

        Returns: None, or a sentence where somebody else replaced the method after us: then theirs stays, and ours,
        below it, hands everything to the class's own.
        """
        self._plans.close()
        undone, self._undone = self._undone, True
        if undone:
            return None
        if vars(self.model).get("model_dump_json") is self._replacement:
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

    def _put_back(self) -> None:
        if self._own:
            cast(Any, self.model).model_dump_json = self._original
        else:
            del cast(Any, self.model).model_dump_json

    def _learn(self, model: Any, kwargs: dict[str, Any]) -> str:
        """An object that no plan fits: the class's own text, and what can be learned from it."""
        text = self._original(model, **kwargs)
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
            self._add(kwargs, self._student.learn(model, kwargs, text))

    def _add(self, kwargs: dict[str, Any], plan: Plan) -> None:
        self._plans.add(kwargs, plan)
        if plan.literal is None:
            self._fall_back(plan.name, "unsupported")

    def _check(self, model: Any, kwargs: dict[str, Any], text: str, plan: Plan) -> str:
        """The class's own text is the one that is sent, whatever ours was."""
        original = self._original(model, **kwargs)
        if original != text and not plan.retired:
            plan.retire()
            self._fall_back(plan.name, "differs")
        return original

    def _fail(self, model: Any, kwargs: dict[str, Any], error: Exception) -> str:
        self._failed(error)
        return self._original(model, **kwargs)

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
        if first and self._on_fallback is None:
            _log(fallback, detail)
        self._tell(fallback)

    def _tell(self, fallback: Fallback) -> None:
        try:
            if self._on_fallback is not None:
                self._on_fallback(*fallback)
        except Exception:
            _logger.exception("accelerate: on_fallback failed")


def accelerate(
    model: type,
    *,
    compare_first: int = 16,
    compare_every: int = 1024,
    on_fallback: Callable[[str, str], object] | None = None,
) -> Acceleration:
    """Make `model.model_dump_json()` several times faster, with the same text.

    Args:
        model: a Pydantic v2 model class. Its subclasses keep their own way, unless they are accelerated too.
        compare_first: how many texts of each shape are compared with the class's own at first.
        compare_every: after that one in so many is.
        on_fallback: called as on_fallback(shape, reason) for each fallback that is counted; what it raises is logged.
            Without it the first of each is logged, by the logger "tailwatch".

    Raises:
        OptionError: it is no Pydantic v2 model class, or a number is out of range.
        AlreadyInstalledError: it is accelerated already.
    """
    _require_model(model)
    _require_number("compare_first", compare_first, 0)
    _require_number("compare_every", compare_every, 1)
    if (other := _accelerated(model)) is not None and other.model is model and other.active:
        raise AlreadyInstalledError(
            f"{model.__qualname__} is accelerated already: undo() that first, by the object that accelerate() returned"
        )
    return Acceleration(model, compare_first, compare_every, on_fallback)


def _replacement(original: Callable[..., str], plans: Plans) -> Callable[..., str]:
    render = plans.render

    @functools.wraps(original)
    def model_dump_json(self: Any, *args: Any, **kwargs: Any) -> str:
        if args:
            return original(self, *args, **kwargs)
        return render(self, kwargs)

    return model_dump_json


def _accelerated(model: type) -> Acceleration | None:
    """Whose method the class has, or has below wrappers around it (functools.wraps hands the mark on)."""
    found = getattr(vars(model).get("model_dump_json"), "__tailwatch__", None)
    return found if isinstance(found, Acceleration) else None


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


def _log(fallback: Fallback, detail: str) -> None:
    level = logging.WARNING if fallback.reason in ("differs", "error") else logging.INFO
    meaning = {
        "differs": "its text was once not the class's own; the class writes it from now on",
        "unsupported": "it holds what is not written here; the class writes it",
        "shapes": "more shapes than there is room for; the class writes the others",
        "error": "our own code failed; the class wrote it",
    }[fallback.reason]
    _logger.log(level, "accelerate: %s: %s%s", fallback.shape, meaning, detail)
