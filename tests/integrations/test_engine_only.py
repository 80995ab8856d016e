"""Engine-only mode: where no process of the group stamps requests, the engine does."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tailwatch

from .test_scheduler_steps import Request, Scheduler, Stats, follow, scheduler_output


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class Reason(enum.IntEnum):
    """As vLLM's FinishReason: its text is a name."""

    LENGTH = 1
    ABORT = 2

    def __str__(self) -> str:
        return self.name.lower()


class Answering(Scheduler):
    """Gives each scheduled request a token; outputs by id are what a test sets otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, Reason] = {}
        self.tokens: dict[str, int] = {}

    def update_from_output(self, scheduler_output: Stats, model_runner_output: Stats) -> dict[int, Stats]:
        ids = scheduler_output.num_scheduled_tokens  # type: ignore[attr-defined]
        self.running = [each for each in ids if each not in self.last]
        outputs = [
            Stats(request_id=each, new_token_ids=[7] * self.tokens.get(each, 1), finish_reason=self.last.get(each))
            for each in ids
        ]
        return {0: Stats(timestamp=time.monotonic(), outputs=outputs)}

    def finish_requests(self, request_ids: Any, finished_status: Any) -> None:
        """Ends them."""


def engine() -> tuple[Any, Answering]:
    watch = tailwatch.install(gc="off", role="engine", slo="ttft<=10s,itl<=5s@99%")
    scheduler = Answering()
    steps = follow(watch.core, scheduler)
    scheduler.finish_requests = steps.around("finish_requests", scheduler.finish_requests)  # type: ignore[method-assign]
    return watch, scheduler


def add(scheduler: Scheduler, name: str, ago: float = 0.0) -> None:
    request = Request(name)
    request.arrival_time = time.time() - ago  # type: ignore[attr-defined]
    scheduler.add_request(request)


def step(scheduler: Scheduler, tokens: dict[str, int], new: tuple[str, ...] = (), sleep: float = 0.0) -> float:
    """Runs one; when it ended, by a clock of our own."""
    scheduler.plans.append(scheduler_output("0.33", tokens, new))
    output = scheduler.schedule()
    time.sleep(sleep)
    scheduler.update_from_output(output, scheduler.answer())
    return time.monotonic()


def test_a_request_has_its_tokens_as_its_steps_end() -> None:
    """TTFT since its arrival at the front end; gaps between the ends of steps; finished with its last output."""
    _, scheduler = engine()
    add(scheduler, "a", ago=0.5)
    begin = time.monotonic()
    first = step(scheduler, {"a": 100}, ("a",), 0.01)
    ends = [first, *(step(scheduler, {"a": 1}, sleep=0.005) for _ in range(3))]
    assert tailwatch.snapshot().in_flight == 1
    scheduler.last, scheduler.tokens = {"a": Reason.LENGTH}, {"a": 2}
    ends.append(step(scheduler, {"a": 1}, sleep=0.005))
    taken = tailwatch.snapshot()
    assert (taken.in_flight, taken.outcomes["good"], taken.tokens) == (0, 1, 6)
    assert taken.labels == [("m", "engine")]
    assert taken.itl.count == 4
    assert taken.itl.sum == pytest.approx(ends[-1] - ends[0], abs=0.01)
    assert 0.5 + 0.01 <= taken.ttft.sum <= 0.5 + (first - begin) + 0.05


def test_an_abort_is_one() -> None:
    """By id, by several, by None; an unknown one is none."""
    _, scheduler = engine()
    for name in "abcd":
        add(scheduler, name)
    step(scheduler, dict.fromkeys("abcd", 5), tuple("abcd"))
    scheduler.finish_requests("a", 0)
    scheduler.finish_requests(["b", "unknown"], 0)
    assert tailwatch.snapshot().in_flight == 2
    scheduler.finish_requests(None, 0)
    taken = tailwatch.snapshot()
    assert (taken.in_flight, taken.requests["abort_early"]) == (0, 4)


def test_a_late_token_is_split_by_cause() -> None:
    """Another request's prompt in the step: whose, by the engine's own record."""
    _, scheduler = engine()
    add(scheduler, "a")
    step(scheduler, {"a": 5}, ("a",))
    for _ in range(30):
        step(scheduler, {"a": 1}, sleep=0.001)
    add(scheduler, "big")
    step(scheduler, {"a": 1, "big": 4000}, ("big",), sleep=0.1)
    late = next(gap for gap in tailwatch.snapshot().slowest if gap.phase == "itl" and gap.gap > 0.09)
    assert late.request_id == "a"
    prefill = next(cause for cause in late.causes if cause.cause == "prefill")
    assert (prefill.name, prefill.detail) == ("big", 4000)
    # how much of the step is the prompt's is an estimate from the steps before, which a busy machine may have delayed
    assert late.causes[0].cause in ("prefill", "device")
    assert sum(cause.seconds for cause in late.causes) == pytest.approx(late.gap - late.typical, abs=1e-6)
    assert tailwatch.snapshot().drops["unjoined"] == 0


def test_a_front_end_that_stamps_keeps_the_engine_from_it() -> None:
    """A request counts once: here by hand."""
    _, scheduler = engine()
    with tailwatch.stream(model="m") as stream:
        add(scheduler, "a")
        step(scheduler, {"a": 5}, ("a",))
        stream.token()
    taken = tailwatch.snapshot()
    assert (taken.opened, [route for _, route in taken.labels]) == (1, ["stream"])


def test_requests_of_before_the_first_step_are_taken_over() -> None:
    """The scheduler is found at the engine's first step: those that wait then, with no token yet."""
    watch = tailwatch.install(gc="off", role="engine")
    scheduler = Answering()
    for name, made in {"waits": 0, "answers": 3}.items():
        request = Request(name)
        request.num_output_tokens = made  # type: ignore[attr-defined]
        scheduler.add_request(request)
    follow(watch.core, scheduler)
    step(scheduler, {"waits": 5, "answers": 1}, ("waits",))
    taken = tailwatch.snapshot()
    assert (taken.opened, taken.tokens, taken.ttft.count) == (1, 1, 1)


def test_the_doctor_names_what_is_not_seen() -> None:
    """Beside numbers of the engine alone."""
    _, scheduler = engine()
    add(scheduler, "a")
    step(scheduler, {"a": 5}, ("a",))
    [found] = [finding for finding in tailwatch.doctor() if finding.rule == "engine-only"]
    assert "front end" in found.title + found.detail


def test_memory_is_bounded_where_requests_vanish() -> None:
    """An engine that drops requests without a word keeps no stream of them."""
    _, scheduler = engine()
    for number in range(6000):
        add(scheduler, f"r{number}")
        del scheduler.requests[f"r{number}"]
    assert tailwatch.snapshot().in_flight < 4200
