"""The scheduler of an engine is followed from the first step on, and is as it was after uninstall()."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

import tailwatch
from tailwatch import snapshots
from tailwatch.snapshots.step_records import StepRecord, StepRecords

from .test_engine_steps import loaded
from .test_scheduler_steps import Scheduler, decoding, scheduler_output


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class Engine:
    """vLLM 0.33's EngineCore, as far as its steps go: with a queue of batches it answers the one before."""

    def __init__(self, *plans: Any, queue: bool = False) -> None:
        self.scheduler = self.make_scheduler()
        self.scheduler.plans = list(plans)
        self.scheduler.get_num_unfinished_requests = lambda: 0  # type: ignore[attr-defined]
        self.batch_queue: deque[Any] | None = deque(maxlen=2) if queue else None

    def make_scheduler(self) -> Any:
        return Scheduler()

    def step(self) -> tuple[dict[int, Any], bool]:
        return self._outputs(self.scheduler.step()), True

    def step_with_batch_queue(self) -> tuple[dict[int, Any] | None, bool]:
        assert self.batch_queue is not None
        if self.scheduler.plans:
            self.batch_queue.appendleft(self.scheduler.schedule())
            if len(self.batch_queue) < 2:
                return None, True
        batch = self.batch_queue.pop()
        return self._outputs(self.scheduler.update_from_output(batch, self.scheduler.answer())), True

    def _outputs(self, outputs: dict[int, Any]) -> dict[int, Any]:
        for each in outputs.values():
            each.outputs = list(self.scheduler.running)
        return outputs


def install(monkeypatch: pytest.MonkeyPatch, engine: type[Engine] = Engine) -> tuple[type[Engine], Any]:
    """A subclass of it that stands where vLLM's stands, and the watch."""
    fresh: type[Engine] = type("EngineCore", (), dict(vars(engine)))
    loaded(monkeypatch, "vllm.v1.engine.core", EngineCore=fresh)
    return fresh, tailwatch.install(gc="off", role="engine")


def records(watch: Any) -> list[StepRecord]:
    return StepRecords(watch.core.address).steps()


def test_an_engine_s_steps_are_recorded_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By instance attributes, which uninstall() takes away."""
    Core, watch = install(monkeypatch)
    engine = Core(decoding("0.33"), decoding("0.33", 5), decoding("0.33"))
    before = dict(vars(engine.scheduler))
    engine.step()
    engine.step()
    assert [step.requests for step in records(watch)] == [3, 5]
    assert {"schedule", "update_from_output"} < set(vars(engine.scheduler)) - set(before)
    report = tailwatch.uninstall()
    assert set(vars(engine.scheduler)) - set(before) == {"stamp"}
    assert not any("scheduler" in sentence for sentence in report)
    engine.step()
    assert len(records(watch)) == 2


def test_with_a_queue_of_batches_a_step_counts_what_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the batch that it has just scheduled; a call that answers none is no step."""
    Core, watch = install(monkeypatch)
    big = scheduler_output("0.33", {"big": 900}, ("big",))
    engine = Core(decoding("0.33", 2), big, decoding("0.33", 4), queue=True)
    counted = []
    for _ in range(4):
        engine.step_with_batch_queue()
        [step] = [each for each in tailwatch.snapshot().steps if each.name == "step_with_batch_queue"] or [None]
        counted.append(step.requests if isinstance(step, snapshots.Step) else 0)
    assert counted == [0, 2, 3, 7]
    assert [(step.requests, step.prefill_tokens) for step in records(watch)] == [(2, 0), (1, 900), (4, 0)]


def test_what_is_not_found_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler of an unknown version: the engine goes on, and the doctor gives the name."""

    class Other:
        def step(self) -> dict[int, Any]:
            return {}

        def get_num_unfinished_requests(self) -> int:
            return 0

    class Changed(Engine):
        def make_scheduler(self) -> Any:
            return Other()

        def _outputs(self, outputs: dict[int, Any]) -> dict[int, Any]:
            return outputs

    Core, watch = install(monkeypatch, type("Changed", (), {**vars(Engine), **vars(Changed)}))
    engine = Core()
    for _ in range(3):
        engine.step()
    [note] = [note for note in watch.notes if "split by cause" in note]
    assert "Other has no schedule and no update_from_output" in note
    assert records(watch) == []


def test_a_second_engine_is_not_mixed_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their steps would interleave: the first is followed, and the doctor has a note."""
    Core, watch = install(monkeypatch)
    first, second = Core(decoding("0.33")), Core(decoding("0.33", 7))
    first.step()
    second.step()
    assert [step.requests for step in records(watch)] == [3]
    assert any("second engine" in note for note in watch.notes)


def test_a_method_that_others_replaced_after_us_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """uninstall() reports it, and ours inside theirs only hands on."""
    Core, watch = install(monkeypatch)
    engine = Core(decoding("0.33"), decoding("0.33"))
    engine.step()
    ours = engine.scheduler.schedule
    engine.scheduler.schedule = theirs = lambda *args: ours(*args)  # type: ignore[method-assign]
    report = tailwatch.uninstall()
    assert any("schedule of the engine's scheduler was replaced" in sentence for sentence in report)
    assert engine.scheduler.schedule is theirs
    engine.step()
    assert len(records(watch)) == 1
