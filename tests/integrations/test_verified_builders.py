"""GuardedBuilder: a function that makes frames, replaced by templates that are learned from it and held against it."""

from __future__ import annotations

import gc
import inspect
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.sse.verified_builder import CLOCK, GuardedBuilder, GuardedShape

Reported = list[tuple[str, str]]


class Builder:
    """A function of a text and a number under guard, with what was reported of it and how often it was called."""

    def __init__(self, original: Callable[..., str], **options: Any) -> None:
        self.calls = 0
        self.reported: Reported = []
        self.shape: GuardedShape

        def counted(text: Any, number: Any = 0) -> str:
            self.calls += 1
            return original(text, number)

        def make(builder: GuardedBuilder) -> Callable[..., str]:
            self.shape = builder.shape("frame", (str, int), lambda values, call: (values, {}))

            def frame(text: Any, number: Any = 0) -> str:
                return builder.answer(self.shape, (text, number), text, number)

            return frame

        self.guarded = GuardedBuilder(
            counted, make, on_fallback=lambda shape, reason: self.reported.append((shape, reason)), **options
        )
        self.frame = self.guarded.function


def plain(text: Any, number: Any) -> str:
    """A frame as json.dumps writes it without its escapes for what is not ASCII."""
    return f"data: {json.dumps({'n': number, 'text': text}, ensure_ascii=False)}\n\n"


def test_the_frames_are_the_functions() -> None:
    """From the first call on, with the values in another order than the frame has them."""
    builder = Builder(plain)
    for i in range(100):
        assert builder.frame(f'a"\n\u00e9{i}', i - 50) == plain(f'a"\n\u00e9{i}', i - 50)
    assert builder.reported == []


@given(text=st.text(st.characters(codec="utf-8")), number=st.integers(-(2**63), 2**63 - 1))
def test_any_text_and_number(text: str, number: int) -> None:
    """Of all Unicode and 64 bits."""
    assert TRUSTED.frame(text, number) == plain(text, number)
    assert ASCII.frame(text, number) == json.dumps([text, number])
    assert (TRUSTED.reported, ASCII.reported) == ([], [])


@given(text=st.text(st.characters()))
def test_half_a_surrogate_pair_in_ascii(text: str) -> None:
    """json.dumps has an escape for it."""
    assert ASCII.frame(text, 1) == json.dumps([text, 1])


def learned(original: Callable[..., str], **options: Any) -> Builder:
    """One that compares nothing any more."""
    builder = Builder(original, compare_first=1, compare_every=10**9, **options)
    for _ in range(3):
        builder.frame("x", 1)
    assert builder.shape.trusted > 10**8
    return builder


TRUSTED = learned(plain)
ASCII = learned(lambda text, number: json.dumps([text, number]), ascii=True)


def test_the_first_are_compared_and_then_one_in_many() -> None:
    """Each comparison is one call of the function; learning is two."""
    builder = Builder(plain, compare_first=4, compare_every=10)
    seen = []
    for i in range(45):
        builder.frame("x", i)
        seen.append(builder.calls)
    assert seen[:5] == [2, 3, 4, 5, 6]
    assert seen[14:16] == [7, 7]
    assert seen[-1] == 6 + 4


@pytest.mark.parametrize(
    "original",
    [
        lambda text, number: f"{text} {text} {number}",
        lambda text, number: f"{number}",
        lambda text, number: f"{text.upper()} {number}",
        lambda text, number: f"{text} {number:e}",
        lambda text, number: f"{text} {number}".encode(),
        lambda text, number: f"{text} {number} {1 // (number < 10**9)}",
    ],
    ids=["twice", "missing", "changed", "rounded", "bytes", "refuses"],
)
def test_what_is_no_template_is_left_to_the_function(original: Callable[..., Any]) -> None:
    """Found at the first call, reported once, and never tried again."""
    builder = Builder(original)
    for i in range(5):
        assert builder.frame("Text", i) == original("Text", i)
    assert builder.reported == [("frame", "unsupported")]
    assert builder.shape.given_up
    assert builder.calls == 5 + 1


def test_one_difference_ends_it() -> None:
    """The function's frame is what is returned, then and from then on."""
    state = [""]
    builder = Builder(lambda text, number: f"{state[0]}{plain(text, number)}")
    for i in range(3):
        builder.frame("x", i)
    state[0] = ": comment\n\n"
    for i in range(5):
        assert builder.frame("x", i) == f": comment\n\n{plain('x', i)}"
    assert builder.reported == [("frame", "differs")]


def test_an_error_of_the_function_comes_through() -> None:
    """Where it raises and the template does not, its error comes through, and the shape is given up."""
    allowed = [True]

    def checked(text: Any, number: Any) -> str:
        if not allowed[0]:
            raise PermissionError(text)
        return plain(text, number)

    builder = Builder(checked)
    for i in range(3):
        builder.frame("x", i)
    allowed[0] = False
    with pytest.raises(PermissionError, match="x"):
        builder.frame("x", 4)
    allowed[0] = True
    assert builder.frame("x", 5) == plain("x", 5)
    assert builder.reported == [("frame", "error")]


def test_an_error_of_both_costs_nothing() -> None:
    """Half a surrogate pair: the function's own error, and the shape goes on."""
    builder = Builder(lambda text, number: plain(text, number).encode().decode())
    for i in range(40):
        builder.frame("x", i)
        with pytest.raises(UnicodeEncodeError):
            builder.frame("\ud800", i)
    assert builder.reported == []
    assert not builder.shape.given_up


@pytest.mark.parametrize("number", [1.5, None, True, 2**63, "1", [1]], ids=repr)
def test_a_value_that_no_hole_takes_is_the_functions(number: Any) -> None:
    """Of another type, or too large: its frame as before, however often, and the shape goes on."""
    builder = Builder(plain)
    for i in range(3):
        builder.frame("x", i)
    for _ in range(40):
        assert builder.frame("x", number) == plain("x", number)
    before = builder.calls
    assert builder.frame("x", 5) == plain("x", 5)
    assert (builder.reported, builder.shape.given_up, builder.shape.fill is None) == ([], False, False)
    assert builder.calls == before + 1


def test_a_listener_that_fails_is_nobodys_error() -> None:
    """on_fallback is ours: the frame is returned whatever it does."""
    guarded = GuardedBuilder(plain, lambda builder: _answering(builder, "fixed"), on_fallback=lambda *fallback: 1 / 0)
    assert guarded.function("x", 1) == plain("x", 1)


def _answering(builder: GuardedBuilder, fixed: str) -> Callable[..., str]:
    shape = builder.shape("fixed", (str,), lambda values, call: ((fixed, 0), {}))
    return lambda text, number: builder.answer(shape, (text,), text, number)


def test_after_stop_every_call_is_the_functions() -> None:
    """For code that still holds the replacement."""
    builder = Builder(plain)
    for i in range(3):
        builder.frame("x", i)
    builder.guarded.stop()
    before = builder.calls
    for i in range(3):
        assert builder.frame("x", i) == plain("x", i)
    assert builder.calls == before + 3
    assert builder.reported == []


def test_it_looks_like_the_function() -> None:
    """Name, docstring and signature; whether the parameters are the same is reported."""

    def original(text: str, number: int = 0) -> str:
        """What it does."""
        return plain(text, number)

    def same(builder: GuardedBuilder) -> Callable[..., str]:
        return lambda text, number=0: original(text, number)

    def other(builder: GuardedBuilder) -> Callable[..., str]:
        return lambda text, number=1: original(text, number)

    guarded = GuardedBuilder(original, same)
    assert guarded.same_signature
    assert not GuardedBuilder(original, other).same_signature
    assert (guarded.function.__name__, guarded.function.__doc__) == ("original", "What it does.")
    assert inspect.signature(guarded.function) == inspect.signature(original)
    assert guarded.original is original


def test_a_clock_that_runs_away_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each look at it shows another second, no mark of it is found in the frame."""
    seconds = iter(range(1_790_000_000, 1_800_000_000))
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    reported: Reported = []

    def original(text: str) -> str:
        return f"{int(time.time())} {text}"

    def make(builder: GuardedBuilder) -> Callable[..., str]:
        shape = builder.shape("clock", (CLOCK, str), lambda values, call: ((values[1],), {}))
        return lambda text: builder.answer(shape, (int(time.time()), text), text)

    guarded = GuardedBuilder(original, make, on_fallback=lambda *fallback: reported.append(fallback))
    assert guarded.function("x").endswith(" x")
    assert reported == [("clock", "unsupported")]


def test_a_thread_that_was_overtaken_gives_nothing_up() -> None:
    """It saw no template; by the time it looks again another thread has learned one."""
    builder = Builder(plain)
    assert builder.guarded.check(builder.shape, None, "x", 1) == plain("x", 1)
    assert builder.shape.fill is not None
    for i in range(3):
        assert builder.guarded.check(builder.shape, None, "y", i) == plain("y", i)
    assert (builder.reported, builder.shape.given_up) == ([], False)


def test_what_fails_in_a_template_costs_no_garbage() -> None:
    """No error holds the frame that holds it."""
    builder = Builder(plain)
    for i in range(3):
        builder.frame("x", i)
    gc.collect()
    for _ in range(3):
        builder.frame(None, 1)
    assert gc.collect() == 0


def test_many_threads_get_their_own_frames() -> None:
    """While it is learned, compared and trusted, and while it is stopped."""
    builder = Builder(plain, compare_first=50, compare_every=7)
    start = threading.Barrier(8)

    def serve(worker: int) -> bool:
        start.wait()
        frames = [(f"w{worker} {i}", i) for i in range(2000)]
        wrong = [frame for frame in frames if builder.frame(*frame) != plain(*frame)]
        if worker == 0:
            builder.guarded.stop()
        return wrong == []

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(serve, range(8)))
    assert builder.reported == []
