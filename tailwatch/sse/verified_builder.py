"""A function that makes whole frames, replaced by templates of what it makes, and held against it.

A template is learned from the function itself: called once with marks in the place of what changes from call to call.
The first frames of each shape are compared with the function's own, then one in many. At any difference the function's
frame is sent, and that shape goes back to it for good; the frames since the comparison before may have differed too.
What fails in here is never the caller's error, and what no hole takes is the function's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailwatch import _hot

CLOCK = "clock"
"""Stands in GuardedShape.holes for whole seconds that the function takes from time.time()."""

_CLOCK_TRIES = 3
_FIRST_NUMBER = 7_310_000_000_000_000_000  # a signed 64-bit number that no frame holds by itself

Made = str | Exception | None
"""A template's frame for a call, or what it raised; None: there was no template yet, perhaps there is by now."""

_NOT_THIS_SHAPE = (TypeError, OverflowError)  # a hole was given None, for example, or a number of more than 64 bits

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Recall = Callable[[Sequence[Any], Arguments], Arguments]


class GuardedShape:
    """One kind of call that a template can answer.

    Attributes:
        name: for people.
        holes: what stands in each hole: str, int or CLOCK.
        recall: the arguments of the same call with other values in the holes, from those values and a call's arguments.
        fill: makes the frame from the values; None before it is learned, and once the shape is given up.
        trusted: frames until the next comparison; the replacement counts it down.
    """

    __slots__ = ("compared", "fill", "given_up", "holes", "name", "recall", "trusted")

    def __init__(self, name: str, holes: Sequence[object], recall: Recall) -> None:
        self.name = name
        self.holes = tuple(holes)
        self.recall = recall
        self.fill: Callable[..., bytes] | None = None
        self.trusted = 0
        self.compared = 0
        self.given_up = False


class GuardedBuilder:
    """Makes the frames that a function makes, from templates.

    Args:
        original: a function or method that returns a frame as str, and does nothing else.
        make: writes the replacement. It is given this builder, whose shape() and answer() it uses:

                def make(builder):
                    text = builder.shape("frame", (str,), lambda values, call: (values, {}))

                    def frame(content, finish_reason=None):
                        if finish_reason is not None:
                            return builder.original(content, finish_reason)
                        return builder.answer(text, (content,), content)

        ascii: the function escapes what is not ASCII, as json.dumps does.
        compare_first, compare_every: the first frames of each shape are compared with the function's, then one in so
            many.
        on_fallback: called with a shape's name and the reason it is given up for: "differs" (from the function's
            frame), "error" (only one of the two raised), "unsupported" (no template could be learned).

    Attributes:
        function: what stands in for ``original``; a method where that is one.
        original: what it stands in for.
        same_signature: whether make() wrote a function with the parameters of ``original``.
    """

    def __init__(
        self,
        original: Callable[..., str],
        make: Callable[[GuardedBuilder], Callable[..., str]],
        *,
        ascii: bool = False,
        compare_first: int = 16,
        compare_every: int = 1024,
        on_fallback: Callable[[str, str], object] | None = None,
    ) -> None:
        self.original = original
        self._ascii = ascii
        self._compare_first, self._compare_every = compare_first, compare_every
        self._on_fallback = on_fallback
        self._shapes: list[GuardedShape] = []
        self._stopped = False
        function = make(self)
        self.same_signature = _parameters(function) == _parameters(original)
        self.function = functools.wraps(original)(function)

    def shape(self, name: str, holes: Sequence[object], recall: Recall) -> GuardedShape:
        """A new shape of this function's calls."""
        shape = GuardedShape(name, holes, recall)
        shape.given_up = self._stopped
        self._shapes.append(shape)
        return shape

    def stop(self) -> None:
        """From now on every call is the function's: for code that still holds the replacement."""
        self._stopped = True
        for shape in self._shapes:
            shape.fill, shape.given_up = None, True

    def answer(self, shape: GuardedShape, values: Sequence[Any], /, *args: Any, **kwargs: Any) -> str:
        """The frame for a call, given the values for the shape's holes and the call's arguments."""
        made: Made = None
        if (fill := shape.fill) is not None:
            try:
                made = fill(*values).decode()
                shape.trusted = trusted = shape.trusted - 1
                if trusted > 0:
                    return made
            except Exception as error:
                made = error.with_traceback(None)
        return self.check(shape, made, *args, **kwargs)

    def check(self, shape: GuardedShape, made: Made, /, *args: Any, **kwargs: Any) -> str:
        """The function's own frame for a call, after a look at what the template made of it."""
        if made is None and not (shape.given_up or shape.fill):
            self._learn(shape, (args, kwargs))
        if made is None or shape.given_up or isinstance(made, _NOT_THIS_SHAPE):
            return self.original(*args, **kwargs)
        try:
            expected = self.original(*args, **kwargs)
        except BaseException:
            if isinstance(made, str):
                self._give_up(shape, "error")
            raise
        if isinstance(made, Exception):
            self._give_up(shape, "error")
        elif made == expected or self._again(shape, (args, kwargs)) == expected:
            self._trust(shape)
        else:
            self._give_up(shape, "differs")
        return expected

    def _trust(self, shape: GuardedShape) -> None:
        shape.compared += 1
        shape.trusted = 1 if shape.compared < self._compare_first else self._compare_every

    def _again(self, shape: GuardedShape, call: Arguments) -> str | None:
        """The template's frame once more: the clock may have moved on since."""
        if CLOCK not in shape.holes:
            return None
        shape.trusted = 2
        return self.function(*call[0], **call[1])

    def _give_up(self, shape: GuardedShape, reason: str) -> None:
        if not shape.given_up:
            shape.fill, shape.given_up = None, True
            if self._on_fallback is not None:
                with contextlib.suppress(Exception):
                    self._on_fallback(shape.name, reason)

    def _learn(self, shape: GuardedShape, call: Arguments) -> None:
        try:
            fill = self._template(shape, call)
        except Exception:
            fill = None
        if fill is None:
            self._give_up(shape, "unsupported")
        else:
            shape.trusted, shape.fill = 0, fill

    def _template(self, shape: GuardedShape, call: Arguments) -> Callable[..., bytes] | None:
        for _ in range(_CLOCK_TRIES if CLOCK in shape.holes else 1):
            marks = [_mark(at, kind) for at, kind in enumerate(shape.holes)]
            args, kwargs = shape.recall(marks, call)
            frame = self.original(*args, **kwargs)
            if type(frame) is str and (fill := _template(frame.encode(), marks, self._ascii)):
                return fill
        return None


def _parameters(function: Callable[..., str]) -> list[tuple[str, object, object]]:
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def _mark(at: int, kind: object) -> str | int:
    if kind is CLOCK:
        return int(time.time())
    return f"tailwatch-mark-{at}-" if kind is str else _FIRST_NUMBER + at


def _template(frame: bytes, marks: Sequence[str | int], ascii: bool) -> Callable[..., bytes] | None:
    """What fills the frame's holes, which are the marks; None unless each stands there once."""
    texts = [str(mark).encode() for mark in marks]
    if any(frame.count(text) != 1 for text in texts):
        return None
    order = sorted(range(len(marks)), key=lambda i: frame.index(texts[i]))
    literal, holes, at = b"", [], 0
    for i in order:
        found = frame.index(texts[i])
        literal += frame[at:found]
        holes.append((len(literal), not isinstance(marks[i], str)))
        at = found + len(texts[i])
    fill = _hot.Template(literal + frame[at:], tuple(holes), ascii).fill
    return fill if order == list(range(len(marks))) else _reordered(fill, order)


def _reordered(fill: Callable[..., bytes], order: Sequence[int]) -> Callable[..., bytes]:
    in_order = operator.itemgetter(*order)

    def filled(*values: Any) -> bytes:
        return fill(*in_order(values))

    return filled
