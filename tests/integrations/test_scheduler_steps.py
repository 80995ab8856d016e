"""Steps read off objects as vLLM's scheduler makes them, of three ages; what a step does not hold is unknown."""

from __future__ import annotations

import dataclasses
import enum
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.snapshots.step_records import StepRecord, StepRecords, request_hash


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class Stats:
    """Anything with the given attributes, as a dataclass instance has them."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)


@dataclasses.dataclass
class New:
    req_id: str


class Request:
    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


Tokens = dict[str, int]


def scheduler_output(
    age: str, tokens: Tokens, new: tuple[str, ...] = (), made: Tokens | None = None, **more: Any
) -> Stats:
    """What ``schedule`` returns. made: output tokens so far of those that are not new, 5 by default. more: preempted,
    resumed, spec."""
    ids = [each for each in tokens if each not in new]
    resumed: set[str] = more.get("resumed", set())
    cached = Stats(req_ids=ids, num_computed_tokens=[7] * len(ids))
    if age == "0.10":
        cached.resumed_from_preemption = [each in resumed for each in ids]  # type: ignore[attr-defined]
    else:
        cached.resumed_req_ids = resumed  # type: ignore[attr-defined]
        cached.num_output_tokens = [(made or {}).get(each, 5) for each in ids]  # type: ignore[attr-defined]
    output = Stats(
        scheduled_new_reqs=[New(each) for each in new],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens=more.get("spec", {}),
        finished_req_ids=set(),
    )
    if age != "0.10":
        output.preempted_req_ids = more.get("preempted")  # type: ignore[attr-defined]
    if age == "0.33":
        output.has_structured_output_requests = False  # type: ignore[attr-defined]
    return output


class Scheduler:
    """Hands out what a test queues up; its engine's loop is step()."""

    def __init__(self, age: str = "0.33") -> None:
        self.age = age
        self.plans: list[Stats] = []
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.requests: dict[str, Request] = {}
        self.kv_cache_manager = Stats(usage=0.25)
        self.connector: Any = None
        self.sampled: Any = []
        self.graph: Any = None
        self.sleep = {"schedule": 0.0, "update": 0.0}

    def add_request(self, request: Request) -> None:
        """Queues."""
        self.requests[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> Stats:
        """The next plan."""
        time.sleep(self.sleep["schedule"])
        return self.plans.pop(0)

    def get_grammar_bitmask(self, scheduler_output: Stats) -> None:
        """None."""

    def update_from_output(self, scheduler_output: Stats, model_runner_output: Stats) -> dict[int, Stats]:
        """One batch of outputs, for one client."""
        time.sleep(self.sleep["update"])
        self.running = list(scheduler_output.num_scheduled_tokens)  # type: ignore[attr-defined]
        self.stamp = time.monotonic()
        return {0: Stats(timestamp=self.stamp)}

    def answer(self) -> Stats:
        """What the model runner gives back, as of the version."""
        more = {} if self.age == "0.10" else {"cudagraph_stats": self.graph, "kv_connector_output": None}
        return Stats(sampled_token_ids=self.sampled, **more)

    def step(self) -> Any:
        """One iteration, as EngineCore.step has it."""
        output = self.schedule(False)
        self.get_grammar_bitmask(output)
        return self.update_from_output(output, self.answer())


METHODS = ("schedule", "get_grammar_bitmask", "update_from_output", "add_request")


def followed(scheduler: Scheduler) -> tuple[_hot.SchedulerSteps, StepRecords]:
    """A scheduler whose steps are recorded."""
    watch = tailwatch.install(gc="off", role="engine")
    return follow(watch.core, scheduler), StepRecords(watch.core.address)


def follow(core: _hot.Core, scheduler: Scheduler) -> _hot.SchedulerSteps:
    """The same, in a process's core."""
    steps = _hot.SchedulerSteps(core, scheduler, "m")
    for name in METHODS:
        setattr(scheduler, name, steps.around(name, getattr(scheduler, name)))
    return steps


def run(scheduler: Scheduler, *plans: Stats) -> list[StepRecord]:
    """The records of these steps."""
    _, records = followed(scheduler)
    scheduler.plans = list(plans)
    for _ in plans:
        scheduler.step()
    return records.steps()


def decoding(age: str, n: int = 3) -> Stats:
    return scheduler_output(age, {f"r{i}": 1 for i in range(n)})


@pytest.mark.parametrize("age", ["0.10", "0.12", "0.33"])
def test_a_step_of_decoding_is_read_whatever_the_version(age: str) -> None:
    """Counts, the join key, and parts that sum to the time between two updates."""
    scheduler = Scheduler(age)
    first, second = run(scheduler, decoding(age), decoding(age, 4))
    assert (second.requests, second.decode_requests, second.decode_tokens) == (4, 4, 4)
    assert (second.prefill_requests, second.prefill_tokens, second.recompute_tokens) == (0, 0, 0)
    assert second.preempted == (None if age == "0.10" else 0)
    assert (second.running, second.waiting, second.prefill_of) == (4, 0, "")
    assert round(second.key * 1e9) == round(scheduler.stamp * 1e9)
    assert second.seconds == pytest.approx(second.done - first.done, abs=200e-9)
    assert first.after_idle and not second.after_idle


@pytest.mark.parametrize("age", ["0.10", "0.12", "0.33"])
def test_prefill_is_distinguished_from_decoding(age: str) -> None:
    """A new request, and one that goes on with its chunks; the longest has a name."""
    tokens = {"a": 1, "b": 1, "new": 300, "chunk": 512}
    [step] = run(Scheduler(age), scheduler_output(age, tokens, ("new",), {"chunk": 0}))
    assert (step.requests, step.decode_requests, step.prefill_requests) == (4, 2, 2)
    assert (step.prefill_tokens, step.decode_tokens, step.recompute_tokens) == (812, 2, 0)
    assert (step.prefill_of, step.prefill_most) == ("chunk", 512)


@pytest.mark.parametrize("age", ["0.12", "0.33"])
@pytest.mark.parametrize("second_runner", [False, True])
def test_what_a_preempted_request_computes_again_is_no_prefill(age: str, second_runner: bool) -> None:
    """By difference, also where it comes back as a new request; both ends are events of it."""
    new = ("victim",) if second_runner else ()
    resumed = set() if second_runner else {"victim"}
    scheduler = Scheduler(age)
    _, records = followed(scheduler)
    scheduler.plans = [
        scheduler_output(age, {"a": 1}, preempted={"victim"}),
        scheduler_output(age, {"a": 1, "victim": 200}, new, resumed=resumed),
        scheduler_output(age, {"a": 1, "victim": 80}),
    ]
    for _ in range(3):
        scheduler.step()
    out, back, rest = records.steps()
    assert out.preempted == 1
    assert (back.prefill_tokens, back.recompute_tokens) == (0, 199 + second_runner * 0)
    assert (rest.prefill_tokens, rest.recompute_tokens) == (0, 79)
    assert [(event.kind, event.request) for event in records.events()] == [
        ("preempted", request_hash("victim")),
        ("resumed", request_hash("victim")),
    ]


def test_spec_tokens_are_neither_prefill_nor_computed_again() -> None:
    """Proposed from the batch, accepted from what was sampled."""
    scheduler = Scheduler()
    scheduler.sampled = [[1, 2, 3], [1]]
    [step] = run(scheduler, scheduler_output("0.33", {"a": 4, "b": 4}, spec={"a": [1, 2, 3], "b": [4, 5, 6]}))
    assert (step.spec_proposed, step.spec_accepted, step.prefill_tokens, step.recompute_tokens) == (6, 2, 0, 0)


def test_a_wait_for_the_first_step_is_an_event() -> None:
    """From add_request to the batch that has it."""
    scheduler = Scheduler()
    _, records = followed(scheduler)
    scheduler.add_request(Request("new"))
    scheduler.add_request(Request("later"))
    scheduler.plans = [decoding("0.33"), scheduler_output("0.33", {"r0": 1, "new": 9}, ("new",))]
    scheduler.step()
    scheduler.step()
    [event] = records.events()
    assert (event.kind, event.request, event.detail) == ("queued", request_hash("new"), 1)
    first, second = records.steps()
    assert event.start < first.done < event.stop < second.done


@pytest.mark.parametrize(("where", "part"), [("schedule", "schedule"), ("update", "update")])
def test_time_is_the_part_s_in_which_it_was_spent(where: str, part: str) -> None:
    """A sleep in a method of the scheduler, and a wait for the model."""
    scheduler = Scheduler()
    scheduler.sleep[where] = 0.03
    _, step = run(scheduler, decoding("0.33"), decoding("0.33"))
    assert step.parts[part] >= 0.03
    assert step.parts[part] == max(step.parts.values())


def test_a_queue_of_batches_keeps_each_answer_with_its_own_batch() -> None:
    """As async scheduling has it: the next batch is scheduled before the last one is answered."""
    scheduler = Scheduler()
    _, records = followed(scheduler)
    scheduler.plans = [
        decoding("0.33", 2),
        scheduler_output("0.33", {"r0": 1, "big": 900}, ("big",)),
        decoding("0.33", 3),
    ]
    ahead = scheduler.schedule()
    for _ in range(2):
        after = scheduler.schedule()
        time.sleep(0.01)
        scheduler.update_from_output(ahead, scheduler.answer())
        ahead = after
    scheduler.update_from_output(scheduler_output=ahead, model_runner_output=scheduler.answer())
    assert [step.prefill_tokens for step in records.steps()] == [0, 900, 0]
    assert [step.requests for step in records.steps()] == [2, 2, 3]
    assert all(step.parts["wait"] >= 0.01 for step in records.steps()[:2])


class Mode(enum.Enum):
    """As vLLM's CUDAGraphMode, whose text is its name."""

    PIECEWISE = 1

    def __str__(self) -> str:
        return self.name


@pytest.mark.parametrize(
    ("age", "stats", "graph"),
    [
        ("0.10", None, None),  # older than 0.13: the output of the model runner has none
        ("0.33", None, None),  # without --cudagraph-metrics
        ("0.33", Stats(runtime_mode="NONE"), "eager"),
        ("0.33", Stats(runtime_mode="FULL"), "full"),
        ("0.33", Stats(runtime_mode="CUDAGraphMode.FULL"), "full"),
        ("0.33", Stats(runtime_mode=Mode.PIECEWISE), "piecewise"),
        ("0.33", Stats(runtime_mode="FASTER"), None),
        ("0.33", Stats(num_paddings=0), None),
        ("0.33", 7, None),
    ],
)
def test_a_graph_mode_is_read_where_it_is_there(age: str, stats: Any, graph: str | None) -> None:
    """Of versions, and runs, that have it."""
    scheduler = Scheduler(age)
    scheduler.graph = stats
    assert run(scheduler, decoding(age))[0].graph == graph


def test_objects_that_are_none_of_these_are_unknown() -> None:
    """Neither an error nor a wrong number."""
    strange = Stats(num_scheduled_tokens=[1], total_num_scheduled_tokens="many", preempted_req_ids=5)
    scheduler = Scheduler()
    scheduler.update_from_output = lambda *_: None  # type: ignore[assignment, misc, method-assign]
    first, second = run(scheduler, Stats(), strange)
    for step in (first, second):
        assert step.requests is step.prefill_tokens is step.preempted is None
        assert step.key == 0.0


def test_a_batch_of_nothing_is_no_step() -> None:
    """Finished requests are passed to the workers by one."""
    assert len(run(Scheduler(), decoding("0.33"), scheduler_output("0.33", {}), decoding("0.33"))) == 2


def test_what_a_method_raises_is_the_engine_s_and_arguments_go_through() -> None:
    """The callable is what it stands for."""
    scheduler = Scheduler()
    followed(scheduler)
    with pytest.raises(IndexError):
        scheduler.schedule(throttle_prefills=True)
    assert scheduler.schedule.__self__ is scheduler  # type: ignore[attr-defined]
    assert scheduler.schedule.__wrapped__.__name__ == "schedule"  # type: ignore[attr-defined]


def test_a_stopped_one_only_hands_on() -> None:
    """And its engine can go."""
    scheduler = Scheduler()
    steps, records = followed(scheduler)
    scheduler.plans = [decoding("0.33")] * 2
    scheduler.step()
    steps.stop()
    scheduler.step()
    assert records.count == 1
    gone = weakref.ref(scheduler)
    del scheduler, steps
    gc.collect()
    assert gone() is None


def test_ids_that_never_come_into_a_step_are_let_go() -> None:
    """Requests that were aborted in the queue take no memory for ever."""
    scheduler = Scheduler()
    followed(scheduler)
    before = len(gc.get_objects())
    for i in range(20_000):
        request = Request(f"aborted-{i}")
        scheduler.add_request(request)
        del scheduler.requests[request.request_id]
    assert len(gc.get_objects()) < before + 5_000
    scheduler.add_request(Request("last"))
    scheduler.plans = [scheduler_output("0.33", {"last": 5}, ("last",))]
    scheduler.step()


def test_a_method_that_is_none_of_the_scheduler_s_is_refused() -> None:
    """By name."""
    steps, _ = followed(Scheduler())
    around: Callable[[str, Any], Any] = steps.around
    with pytest.raises(ValueError, match="make_stats"):
        around("make_stats", print)
