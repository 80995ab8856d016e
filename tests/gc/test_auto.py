"""gc="auto": when it chooses which policy."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from tailwatch import _hot
from tailwatch.gc.auto import LEARNING_SECONDS, RETRY_SECONDS, REVIEW_SECONDS, WORTH_SECONDS, AutoPolicy, MeanWait
from tailwatch.gc.capabilities import CHOICES, slices_possible
from tailwatch.gc.hook import WARM_REQUESTS, GCHook
from tailwatch.gc.interference import WHYS

needs_slices = pytest.mark.skipif(not slices_possible(), reason="this interpreter's heap cannot be collected in slices")
LONG, SHORT = 0.05, 0.0003


@pytest.fixture
def hook() -> Iterator[GCHook]:
    """Attached; its heap is frozen. The interpreter makes no collection of its own."""
    gc.disable()
    core = _hot.Core("api", 4, (0, 0, 0, 0, 990_000), 0, lambda scope: "/", lambda awaitable, stream: awaitable)
    made = GCHook(core, "freeze")
    made.attach()
    yield made
    made.detach()
    gc.unfreeze()
    gc.enable()


class Clock:
    """Calls turn() once a second, each time with the pauses of that second."""

    def __init__(self, hook: GCHook, *, waits: bool = False) -> None:
        self.now, self.waits = 1000.0, waits
        self._pauses: list[float] = []
        self.auto = AutoPolicy(hook, lambda: self._pauses, lambda: not self.waits)
        self.auto.turn(self.now)

    def run(self, seconds: float, *pauses: float) -> None:
        self._pauses = list(pauses)
        for _ in range(round(seconds)):
            self.now += 1.0
            self.auto.turn(self.now)


def test_the_mean_wait_is_that_of_tokens_at_random_moments() -> None:
    """Against a simulation: pauses at known places, a million moments."""
    pauses = {3.0: 0.2, 40.0: 0.05, 70.0: 0.6}
    wait = MeanWait()
    wait.add(0.0, [])
    wait.seconds = 100.0
    wait.add(0.0, pauses.values())
    chance = random.Random(1)
    moments = [chance.uniform(0, 100) for _ in range(1_000_000)]
    waited = sum(max(0.0, start + length - at) for at in moments for start, length in pauses.items() if at >= start)
    assert wait.value == pytest.approx(waited / len(moments), rel=0.05)


def test_an_old_pause_counts_less() -> None:
    wait = MeanWait()
    wait.add(1.0, [1.0])
    values = []
    for _ in range(10):
        wait.add(300.0, [])
        values.append(wait.value)
    assert values == sorted(values, reverse=True)
    assert values[-1] < WORTH_SECONDS


def test_each_choice_has_a_number_and_a_sentence() -> None:
    assert set(CHOICES) == set(WHYS) - {""}


def test_it_keeps_the_freeze_where_collections_are_short(hook: GCHook) -> None:
    clock = Clock(hook)
    clock.run(200, SHORT, SHORT)
    assert (hook.policy, hook.reason) == ("freeze", "start-up")
    assert clock.auto.measured["freeze"] == pytest.approx(SHORT**2, rel=0.01)


@needs_slices
def test_it_tries_idle_time_where_collections_are_long(hook: GCHook) -> None:
    clock = Clock(hook)
    clock.run(LEARNING_SECONDS - 1, LONG)
    assert hook.policy == "freeze"
    clock.run(3, LONG)
    assert (hook.policy, hook.reason, hook.idle_gc.engaged) == ("idle", "collections", True)
    clock.run(REVIEW_SECONDS * 2, SHORT)
    assert hook.policy == "idle"
    assert clock.auto.measured["idle"] < clock.auto.measured["freeze"]


@needs_slices
def test_it_begins_at_a_moment_without_streams_or_half_a_minute_later(hook: GCHook) -> None:
    clock = Clock(hook, waits=True)
    clock.run(LEARNING_SECONDS + 5, LONG)
    assert (hook.policy, hook.idle_gc.engaged) == ("idle", False)
    clock.run(30, LONG)
    assert hook.idle_gc.engaged


@needs_slices
def test_the_pause_of_the_change_is_no_cost_of_slices(hook: GCHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large frozen heap: slices begin with one walk over it, longer than the collections that they replace."""
    ended: list[float] = []
    engage = hook.engage_now

    def engage_for_long() -> None:
        engage()
        ended.append(10 * LONG)

    def read() -> list[float]:
        found = ended + ([SHORT] if hook.idle_gc.engaged else [LONG])
        ended.clear()
        return found

    monkeypatch.setattr(hook, "engage_now", engage_for_long)
    clock = Clock(hook)
    clock.auto = AutoPolicy(hook, read, lambda: True)
    clock.run(4 * LEARNING_SECONDS)
    assert (hook.policy, hook.reason) == ("idle", "collections")
    assert clock.auto.measured["idle"] < WORTH_SECONDS


@needs_slices
def test_it_tries_again_where_collections_have_come_to_cost_more_than_slices_did(hook: GCHook) -> None:
    """A heap that grows: slices once cost as much as collections then, and twice that is exceeded before the retry."""
    clock = Clock(hook)
    clock.run(LEARNING_SECONDS + 3, LONG)
    clock.run(LEARNING_SECONDS + 3, LONG)
    assert (hook.policy, hook.reason) == ("freeze", "slices")
    clock.run(4 * LEARNING_SECONDS, LONG)
    assert hook.policy == "freeze"
    began = clock.now
    while hook.policy == "freeze":
        clock.run(1, 3 * LONG)
    assert hook.reason == "collections"
    assert clock.now - began < 4 * LEARNING_SECONDS < RETRY_SECONDS


@needs_slices
def test_it_returns_where_slices_cost_as_much_and_tries_again_later(hook: GCHook) -> None:
    clock = Clock(hook)
    waits = []
    for _ in range(3):
        began = clock.now
        while hook.policy == "freeze":
            clock.run(1, LONG)
        waits.append(clock.now - began)
        while hook.policy == "idle":
            clock.run(1, LONG, LONG)
        assert hook.reason == "slices"
    assert waits[0] <= LEARNING_SECONDS + 1
    assert waits[1] == pytest.approx(RETRY_SECONDS, abs=2)
    assert waits[2] == pytest.approx(2 * RETRY_SECONDS, abs=2)


@needs_slices
def test_it_measures_the_policy_before_again_while_slices_cost_something(hook: GCHook) -> None:
    clock = Clock(hook)
    clock.run(LEARNING_SECONDS + 5, LONG)
    clock.run(REVIEW_SECONDS + 2, LONG / 2)
    assert (hook.policy, hook.reason) == ("freeze", "review")


def test_a_heap_that_the_host_froze_is_left_to_it(hook: GCHook) -> None:
    gc.collect()
    gc.freeze()
    clock = Clock(hook)
    clock.auto.on_startup()
    hook.on_startup()
    assert (hook.policy, hook.reason, hook.state.done) == ("observe", "host-froze", [])


def test_freezes_at_the_start_are_no_cost(hook: GCHook) -> None:
    clock = Clock(hook)
    hook.on_startup()
    clock.run(1, 2.0)
    clock.run(LEARNING_SECONDS, SHORT)
    assert clock.auto.measured["freeze"] < WORTH_SECONDS


def test_a_heap_that_is_frozen_again_and_again_keeps_the_last_freezes(
    hook: GCHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heap whose objects are soon replaced is frozen about once a minute, for as long as the server lives."""
    monkeypatch.setattr("tailwatch.gc.hook.KEPT_FREEZES", 3)
    clock = Clock(hook)
    for _ in range(5):
        hook.freeze(reason="growth")
    clock.run(1, SHORT)
    hook.freeze(reason="warm-up")
    clock.run(1, 2.0)  # of the freeze after warm-up, which is no cost
    clock.run(LEARNING_SECONDS, SHORT)
    assert [freeze.reason for freeze in hook.state.done] == ["growth", "growth", "warm-up"] and hook.state.made == 6
    assert clock.auto.measured["freeze"] < WORTH_SECONDS


@needs_slices
def test_a_self_test_that_fails_ends_the_trial_for_good(hook: GCHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.idle_gc, "_prove", lambda: "proof")
    clock = Clock(hook)
    clock.run(LEARNING_SECONDS + 5, LONG)
    assert (hook.policy, hook.reason) == ("freeze", "proof")
    clock.run(10 * RETRY_SECONDS, LONG)
    assert hook.policy == "freeze"


def test_a_heap_that_grew_is_frozen_again_at_a_moment_without_streams(hook: GCHook) -> None:
    for _ in range(WARM_REQUESTS):
        hook.core.stream("m", "r", None, "", "").close()
    hook.on_idle()
    assert [freeze.reason for freeze in hook.state.done] == ["first idle moment"]
    kept = []
    while hook.core.unfrozen is not None and not hook.has_grown:
        kept.append([[] for _ in range(10_000)])
        gc.collect(1)
    if hook.core.unfrozen is None:
        pytest.skip("this interpreter's books are not known")
    assert len(kept) * 10_000 >= max(50_000, hook.frozen // 5) * 0.5
    hook.on_idle()
    assert [freeze.reason for freeze in hook.state.done][1:] == ["growth"]
    assert not hook.has_grown


def test_after_each_doubling_what_is_frozen_is_examined(hook: GCHook) -> None:
    for _ in range(WARM_REQUESTS):
        hook.core.stream("m", "r", None, "", "").close()
    hook.on_idle()
    if hook.core.unfrozen is None:
        pytest.skip("this interpreter's books are not known")
    first = hook.frozen
    kept = []
    while not hook.state.done[-1].unfrozen:
        while not hook.has_grown:
            kept.append([[] for _ in range(10_000)])
            gc.collect(1)
        hook.on_idle()
        assert hook.frozen <= 4 * first
    assert hook.frozen == pytest.approx(gc.get_freeze_count(), rel=0.05)
