"""tailwatch.step(): steps, host gaps and what pauses did to both, as a program that calls it sees them."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch.snapshots import serialization


@pytest.fixture
def watch() -> Iterator[tailwatch.Watch]:
    """Installed, looking only, without collections of its own accord."""
    gc.disable()
    yield tailwatch.install(gc="observe", role="engine")
    tailwatch.uninstall()
    gc.enable()


def step_of(name: str) -> snapshots.Step:
    [found] = [step for step in tailwatch.snapshot().steps if step.name == name]
    return found


def between() -> float:
    """Something takes a while; how long, at least, in seconds."""
    start = time.monotonic()
    time.sleep(0.002)
    return time.monotonic() - start


# ---- what is kept ----


def test_a_step_is_as_long_as_its_block(watch: tailwatch.Watch) -> None:
    """The length lies between that of the block's inside and that of the whole statement."""
    outer = time.monotonic()
    with tailwatch.step("decode", batch=32):
        inside = between()
    outer = time.monotonic() - outer
    step = step_of("decode")
    assert (step.process, step.role, step.requests, step.batch) == ("engine-0", "engine", 32, 32.0)
    assert step.steps.time.count == 1
    assert inside <= step.steps.time.sum <= outer


def test_a_host_gap_is_what_follows_work_that_waits(watch: tailwatch.Watch) -> None:
    """waiting=3 at an end makes the time up to the next begin a host gap."""
    with tailwatch.step("decode", batch=8, waiting=3):
        pass
    gap = between()
    with tailwatch.step("decode", batch=8, waiting=0):
        pass
    step = step_of("decode")
    assert step.host_gaps.time.count == 1
    assert gap <= step.host_gaps.time.sum < gap + 1
    assert step.unknown_gap == 0


def test_an_idle_engine_s_wait_is_no_host_gap(watch: tailwatch.Watch) -> None:
    """Nothing is kept of the time after an end that left nothing."""
    for _ in range(2):
        with tailwatch.step("decode", batch=8) as step:
            step.waiting = 0
        between()
    assert (step_of("decode").host_gaps.time.count, step_of("decode").unknown_gap) == (0, 0)


def test_unsaid_it_is_unknown(watch: tailwatch.Watch) -> None:
    """Without waiting the time between two steps is kept apart and called nothing."""
    with tailwatch.step("decode", batch=8):
        pass
    gap = between()
    with tailwatch.step("decode", batch=8) as step:
        assert step.waiting is None
    assert step_of("decode").host_gaps.time.count == 0
    assert step_of("decode").unknown_gap >= gap


def test_a_step_that_ran_nothing_is_none(watch: tailwatch.Watch) -> None:
    """batch=0 at the end: no step, and the gap that it stands in goes on."""
    with tailwatch.step("decode", waiting=1):
        pass
    with tailwatch.step("decode", waiting=1) as step:
        nothing = between()
        step.batch = 0
    with tailwatch.step("decode", waiting=0):
        pass
    kept = step_of("decode")
    assert (kept.steps.time.count, kept.requests, kept.host_gaps.time.count) == (2, 2, 1)
    assert kept.host_gaps.time.sum >= nothing


def test_a_pause_inside_a_step_is_its_cause(watch: tailwatch.Watch) -> None:
    """A collection of a heap within a step is its overlap, times its batch its requests'; one in a gap is the gap's."""
    heap: list[Any] = [[i] for i in range(200_000)]
    with tailwatch.step("prefill", batch=4, waiting=6):
        gc.collect()
    gc.collect()
    with tailwatch.step("decode", batch=2, waiting=0):
        pass
    del heap
    inside, gap = step_of("prefill").steps, step_of("decode").host_gaps
    records, _, _ = snapshots.Records(watch.core.address).pauses(0, before_ns=1 << 62)
    lengths = [record.seconds for record in records if record.cause == "gc2"]
    assert inside.overlap["gc2"] == pytest.approx(lengths[0])
    assert inside.requests["gc2"] == pytest.approx(4 * lengths[0])
    assert gap.overlap["gc2"] == pytest.approx(lengths[1])
    assert gap.requests["gc2"] == pytest.approx(6 * lengths[1])
    assert step_of("decode").steps.overlap["gc2"] == 0


def test_an_exception_ends_the_step(watch: tailwatch.Watch) -> None:
    """What is raised inside goes on its way, and the step is counted."""
    with pytest.raises(KeyError, match="mine"), tailwatch.step("decode"):
        raise KeyError("mine")
    assert step_of("decode").steps.time.count == 1


def test_steps_nest(watch: tailwatch.Watch) -> None:
    """Each is counted; there is no host gap inside a step."""
    with tailwatch.step("step", waiting=1):
        for _ in range(2):
            with tailwatch.step("sample", waiting=1):
                between()
            between()
    assert (step_of("step").steps.time.count, step_of("sample").steps.time.count) == (1, 2)
    assert step_of("step").steps.time.sum >= step_of("sample").steps.time.sum
    assert step_of("sample").host_gaps.time.count == 0


def test_the_same_object_serves_again(watch: tailwatch.Watch) -> None:
    """Entered again it is another step; entered while it is open it goes on to the outer end."""
    step = tailwatch.step("decode", waiting=0)
    for batch in (1, 2):
        with step:
            step.batch = batch
    with step, step:
        between()
    assert (step_of("decode").steps.time.count, step_of("decode").requests) == (3, 5)
    step.__exit__(None, None, None)
    assert step_of("decode").steps.time.count == 3


def test_threads_have_gaps_of_their_own(watch: tailwatch.Watch) -> None:
    """A step open on one thread does not hide another thread's gap, if their names differ."""
    opened, close = threading.Event(), threading.Event()

    def other() -> None:
        with tailwatch.step("other"):
            opened.set()
            close.wait(60)

    with tailwatch.step("decode", waiting=1):
        pass
    thread = threading.Thread(target=other)
    thread.start()
    assert opened.wait(60)
    with tailwatch.step("decode", waiting=1):
        pass
    close.set()
    thread.join(60)
    assert step_of("decode").host_gaps.time.count == 1
    assert step_of("other").host_gaps.time.count == 0


def test_a_step_that_is_never_left_is_not_counted(watch: tailwatch.Watch) -> None:
    """An object let go while open hides no later gap."""
    tailwatch.step("decode").__enter__()
    with tailwatch.step("decode", waiting=1):
        pass
    with tailwatch.step("decode", waiting=0):
        pass
    assert (step_of("decode").steps.time.count, step_of("decode").host_gaps.time.count) == (2, 1)


def test_more_names_than_are_kept_apart(watch: tailwatch.Watch) -> None:
    """Seven have a name, the rest is "other", and none is lost; any text is a name."""
    for name in [*(f"step-{i}" for i in range(7)), "one", "two", "", "\ud800", "step-3"]:
        with tailwatch.step(name):
            pass
    counts = {step.name: step.steps.time.count for step in tailwatch.snapshot().steps}
    assert counts == {**{f"step-{i}": 1 + (i == 3) for i in range(7)}, "other": 4}


def test_names_are_cut_and_cleaned(watch: tailwatch.Watch) -> None:
    """31 bytes, at a character; no control characters."""
    with tailwatch.step("é" * 30):
        pass
    with tailwatch.step("a\nb"):
        pass
    assert [step.name for step in tailwatch.snapshot().steps] == ["é" * 15, "a?b"]


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"name": 3}, "name"),
        ({"name": "x", "batch": -1}, "batch"),
        ({"name": "x", "batch": 1.5}, "batch"),
        ({"name": "x", "batch": None}, "batch"),
        ({"name": "x", "batch": 1 << 70}, "batch"),
        ({"name": "x", "waiting": -1}, "waiting"),
        ({"name": "x", "waiting": "3"}, "waiting"),
    ],
)
def test_bad_arguments_teach(watch: tailwatch.Watch, arguments: dict[str, Any], option: str) -> None:
    """OptionError names the argument."""
    with pytest.raises(tailwatch.OptionError) as caught:
        tailwatch.step(**arguments)
    assert caught.value.option == option


def test_bad_attributes_leave_it_as_it_was(watch: tailwatch.Watch) -> None:
    """batch and waiting refuse what is no number, and deletion."""
    step = tailwatch.step("decode", batch=2, waiting=3)
    with pytest.raises(ValueError, match=r"^batch: expected a number"):
        step.batch = -1
    with pytest.raises(TypeError):
        step.waiting = "x"  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        del step.batch
    assert (step.name, step.batch, step.waiting) == ("decode", 2, 3)
    step.waiting = None
    assert step.waiting is None


def test_the_type_makes_none_itself() -> None:
    """Steps come from a core."""
    with pytest.raises(TypeError):
        _hot.Step()  # type: ignore[call-arg]


# ---- install, uninstall, fork ----


def test_never_installed_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """NotInstalledError, as stream() does."""
    monkeypatch.setattr("tailwatch.runtime.install._was_installed", False)
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.step("decode")


def test_after_uninstall_it_is_inert() -> None:
    """The host's loop goes on, with new steps and with kept ones; a later install() has none of them."""
    tailwatch.install(gc="off")
    kept = tailwatch.step("decode")
    with kept:
        tailwatch.uninstall()
    with kept:
        pass
    with tailwatch.step("decode", batch=3, waiting=1) as step:
        step.batch, step.waiting = 4, 0
    tailwatch.install(gc="off")
    try:
        assert tailwatch.snapshot().steps == []
        with kept:
            pass
        assert step_of("decode").steps.time.count == 1
    finally:
        tailwatch.uninstall()


@pytest.mark.parametrize("how", ["os.fork", "fork() in C"])
def test_a_fork_child_starts_from_nothing(watch: tailwatch.Watch, how: str) -> None:
    """Its parent's open step is not its own; the parent's goes on."""
    read, write = os.pipe()
    with tailwatch.step("before", waiting=1):
        pass
    with tailwatch.step("decode", waiting=1) as outer:
        fork: Callable[[], int] = os.fork if how == "os.fork" else ctypes.PyDLL(None).fork
        if (pid := fork()) == 0:
            try:
                outer.__exit__(None, None, None)
                with outer:
                    pass
                kept = {
                    step.name: [step.steps.time.count, step.host_gaps.time.count] for step in watch.snapshot().steps
                }
                os.write(write, json.dumps(kept).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert json.loads(os.read(read, 100)) == {"decode": [1, 0]}
    os.close(read)
    os.close(write)
    assert step_of("decode").steps.time.count == 1


# ---- snapshots ----


def test_a_difference_has_the_steps_in_between(watch: tailwatch.Watch) -> None:
    """later - earlier."""
    with tailwatch.step("decode", batch=2):
        pass
    earlier = tailwatch.snapshot()
    with tailwatch.step("decode", batch=5):
        pass
    [step] = (tailwatch.snapshot() - earlier).steps
    assert (step.steps.time.count, step.requests, step.batch) == (1, 5, 5.0)


def test_a_saved_snapshot_has_them_too(watch: tailwatch.Watch) -> None:
    """as_dict() is JSON, and what is read back from it has the same numbers."""
    with tailwatch.step("decode", batch=2, waiting=1):
        pass
    with tailwatch.step("decode", batch=2):
        pass
    now = tailwatch.snapshot()
    read = serialization.from_dict(json.loads(json.dumps(now.as_dict())))
    [step], [was] = now.steps, read.steps
    assert (was.process, was.name, was.batch, was.unknown_gap) == (step.process, step.name, 2.0, step.unknown_gap)
    assert was.steps.time.p(99) == step.steps.time.p(99)
    assert was.host_gaps.time.count == 1
    assert was.steps.overlap == step.steps.overlap


def test_a_snapshot_saved_before_steps_has_none(watch: tailwatch.Watch) -> None:
    """Files of older versions are read."""
    data = tailwatch.snapshot().as_dict()
    del data["steps"]
    assert serialization.from_dict(data).steps == []
