"""transformers' continuous batching, as its sources of three ages have it (tests/servers/symbols/transformers.json):
steps are read from each, and results carry the stamp of their step to the stream. A real server is run by
tests/servers/batching_causes.py."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.integrations.output_hook import OutputHook
from tailwatch.integrations.transformers import MODULE, OUTPUTS, TransformersSteps
from tailwatch.snapshots.step_records import StepRecord, StepRecords

from .test_engine_steps import loaded


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


Status = Enum("Status", "PENDING PREFILLING DECODING FINISHED FAILED")


class State:
    """A RequestState: `prompt_ids` of 4.57 are `tokens_to_process` since 5.0."""

    def __init__(self, age: str, request_id: str, prompt: int) -> None:
        self.age = age
        self.request_id = request_id
        self.left = prompt
        self.made = 0
        self.status = Status.PENDING
        self.position_offset = 0
        if age != "4.57":
            self._true_initial_tokens = 0

    def generated_len(self) -> int:
        return self.made

    def take(self, most: int) -> int:
        """Tokens that the next step computes of it."""
        tokens = min(self.left, most) if self.left else 1
        self.left -= tokens if self.left else 0
        setattr(self, "prompt_ids" if self.age == "4.57" else "tokens_to_process", [0] * tokens)
        self.status = Status.PREFILLING if not self.made else Status.DECODING
        return tokens


class Scheduler:
    """Those with a place, and those without."""

    def __init__(self) -> None:
        self.active_requests: dict[str, State] = {}
        self.waiting_requests: dict[str, State] = {}

    def add_waiting_request(self, state: State) -> None:
        self.waiting_requests[state.request_id] = state

    def set_request_cancellation(self, request_id: str) -> None:
        self.active_requests.pop(request_id)


def spend(seconds: float) -> None:
    """Until the clock has gone on by so much."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class IOs:
    """What 5.3 and later have of a batch."""

    def __init__(self, sleeps: dict[str, float]) -> None:
        self.requests_in_batch: list[Any] = []
        self.sleeps = sleeps

    def prepare_batch_tensors(self, requests_in_batch: list[Any]) -> None:
        spend(self.sleeps.get("inputs", 0.0))
        self.requests_in_batch = requests_in_batch

    def prepare_batch_update(self) -> None:
        spend(self.sleeps.get("device", 0.0))


class Processor:
    """A ContinuousBatchProcessor with room for so many tokens a step."""

    def __init__(self, age: str, room: int = 100) -> None:
        self.age, self.room = age, room
        self.scheduler = Scheduler()
        self.cache = SimpleNamespace(num_blocks=10, get_num_free_blocks=lambda: 4)
        if age == "5.24":
            self.cache = SimpleNamespace(compute_free_capacity=lambda relative=True: 0.4)
        self.sleeps: dict[str, float] = {}
        if age == "4.57":
            self.requests_in_batch: list[Any] = []
        else:
            self.inputs_and_outputs = IOs(self.sleeps)
            self.use_async_batching = False

    def sleep(self, where: str) -> None:
        spend(self.sleeps.get(where, 0.0))

    def prepare_next_batch(self) -> bool:
        self.sleep("schedule")
        self.scheduler.active_requests |= self.scheduler.waiting_requests
        self.scheduler.waiting_requests.clear()
        batch = []
        for state in self.scheduler.active_requests.values():
            tokens = state.take(self.room)
            future = SimpleNamespace(state=state, query_length=tokens, has_new_token=not state.left)
            batch.append(future if self.age != "4.57" else state)
        if self.age == "4.57":
            self.requests_in_batch = batch
        else:
            self.inputs_and_outputs.prepare_batch_tensors(requests_in_batch=batch)
        return bool(batch)

    def update_batch(self) -> None:
        if self.age != "4.57":
            self.inputs_and_outputs.prepare_batch_update()
        self.sleep("update")
        for state in self.scheduler.active_requests.values():
            state.made += not state.left
            state.status = Status.DECODING


class Manager:
    """ContinuousBatchingManager: its loop is step()."""

    def __init__(self, processor: Processor) -> None:
        self.batch_processor = processor
        self.model = SimpleNamespace(config=SimpleNamespace(_name_or_path="m"))

    def step(self) -> bool:
        if not self.batch_processor.prepare_next_batch():
            return False
        self._generation_step()
        self.batch_processor.update_batch()
        return True

    def _generation_step(self) -> None:
        self.batch_processor.sleep("forward")


AGES = ("4.57", "5.3", "5.24")


def followed(monkeypatch: pytest.MonkeyPatch, age: str) -> tuple[Manager, Callable[[], list[StepRecord]], Any]:
    """A manager that has made a step, its records after that, and the watch."""
    fresh: Any = type("ContinuousBatchingManager", (), dict(vars(Manager)))
    loaded(monkeypatch, MODULE, ContinuousBatchingManager=fresh)
    watch = tailwatch.install(gc="off", role="engine")
    manager = fresh(Processor(age))
    manager.batch_processor.scheduler.add_waiting_request(State(age, "first", 1))
    manager.step()
    records = StepRecords(watch.core.address)
    return manager, records.steps, watch


@pytest.mark.parametrize("age", AGES)
def test_a_prompt_in_chunks_beside_one_that_decodes(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """Chunks are prefill of that request until its prompt is computed; then it decodes as well."""
    manager, steps, watch = followed(monkeypatch, age)
    manager.batch_processor.scheduler.add_waiting_request(State(age, "long", 250))
    for _ in range(4):
        manager.step()
    found = steps()[-4:]
    assert [(s.requests, s.prefill_requests, s.prefill_tokens, s.decode_tokens) for s in found] == [
        (2, 1, 100, 1), (2, 1, 100, 1), (2, 1, 50, 1), (2, 0, 0, 2),
    ]  # fmt: skip
    assert [s.prefill_of for s in found[:3]] == ["long"] * 3
    assert [s.running for s in found] == [2] * 4
    [queued] = [each for each in StepRecords(watch.core.address).events() if each.kind == "queued"][-1:]
    assert queued.start <= queued.stop <= found[0].done
    for _ in range(16):  # it is looked at now and then
        manager.step()
    assert steps()[-1].kv_use == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(
    ("where", "part"),
    [("schedule", "schedule"), ("inputs", "dispatch"), ("forward", "wait"), ("device", "wait"), ("update", "update")],
)
def test_time_is_the_part_s_in_which_it_was_spent(monkeypatch: pytest.MonkeyPatch, where: str, part: str) -> None:
    """A batch's inputs take longer with a long prompt, as the device does, and the scheduler does not. The device is
    waited for in the forward, and where results are fetched."""
    manager, steps, _ = followed(monkeypatch, "5.24")
    manager.batch_processor.sleeps[where] = 0.05
    for _ in range(5):
        manager.step()
    found = [each.parts for each in steps()[-5:]]
    assert all(lengths[part] >= 0.05 for lengths in found)
    assert min(sum(lengths.values()) - lengths[part] for lengths in found) < 0.025  # more may be the load


def test_a_prompt_that_is_prepared_in_a_step_is_known_in_that_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The asynchronous loop prepares the batch with the prompt before it has the results of the batch before."""
    manager, steps, watch = followed(monkeypatch, "5.24")
    processor = manager.batch_processor
    processor.use_async_batching = True
    processor.prepare_next_batch()
    processor.scheduler.add_waiting_request(State("5.24", "long", 70))
    processor.prepare_next_batch()
    processor.update_batch()
    processor.update_batch()
    ring = StepRecords(watch.core.address)._ring
    begun = [ring.step[(ring.head + i) % len(ring.step)].next_prefill_tokens for i in (-2, -1)]
    assert [(s.prefill_tokens, n) for s, n in zip(steps()[-2:], begun, strict=True)] == [(0, 70), (70, 0)]


def test_where_results_are_fetched_is_not_seen_before_5_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the whole update may be the device's: it counts so, and the doctor has it once."""
    manager, steps, watch = followed(monkeypatch, "4.57")
    manager.batch_processor.sleeps["update"] = 0.05
    for _ in range(3):
        manager.step()
    assert steps()[-1].parts["wait"] >= 0.05
    [note] = [each for each in watch.notes if "prepare_batch_update" in each]
    assert "counts as waiting for the device" in note


def test_a_loop_that_finds_nothing_to_do_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its waits are no part of the step that comes next."""
    manager, steps, _ = followed(monkeypatch, "5.24")
    manager.batch_processor.scheduler.set_request_cancellation("first")
    for _ in range(3):
        assert not manager.step()
        time.sleep(0.03)
    manager.batch_processor.scheduler.add_waiting_request(State("5.24", "next", 3))
    manager.step()
    assert steps()[-1].parts["input"] < 0.03


def test_a_request_that_lost_its_place_is_preempted_and_then_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits again with what it has made as a part of its prompt; what is computed again is no prefill."""
    manager, steps, watch = followed(monkeypatch, "5.24")
    scheduler = manager.batch_processor.scheduler
    scheduler.add_waiting_request(State("5.24", "other", 2))
    manager.step()
    del scheduler.active_requests["first"]
    again = State("5.24", "first", 40)
    again._true_initial_tokens = 1
    scheduler.add_waiting_request(again)
    manager.step()
    last = steps()[-1]
    assert (last.preempted, last.prefill_tokens, last.recompute_tokens) == (1, 0, 39)
    kinds = [each.kind for each in StepRecords(watch.core.address).events()]
    assert kinds[-2:] == ["preempted", "resumed"]


def test_a_processor_goes_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without us, at once: it frees the device's memory then. The next one is followed in its place."""
    manager, steps, _ = followed(monkeypatch, "5.24")
    gone = weakref.ref(manager.batch_processor)
    gc.collect()
    gc.disable()
    try:
        manager.batch_processor = Processor("5.24")
        assert gone() is None
    finally:
        gc.enable()
    before = len(steps())
    manager.batch_processor.scheduler.add_waiting_request(State("5.24", "another", 1))
    manager.step()
    manager.step()
    assert len(steps()) == before + 2 - 1


def test_a_kept_method_keeps_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without us. Another processor's steps are not the first one's."""
    manager, steps, _ = followed(monkeypatch, "5.24")
    kept = manager.batch_processor.prepare_next_batch
    gone = weakref.ref(manager.batch_processor)
    del manager
    assert kept()
    processor = kept.__self__  # type: ignore[attr-defined]
    assert processor is gone()
    count = len(steps())
    other = Processor("5.24")
    other.scheduler.add_waiting_request(State("5.24", "its", 1))
    assert other.prepare_next_batch()
    other.update_batch()
    assert len(steps()) == count
    processor.update_batch()
    assert len(steps()) == count + 1


def test_uninstall_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """On no object of the engine's, and on no class; also of a processor that is gone."""
    classes = (Processor, Scheduler, IOs)
    before = [dict(vars(each)) for each in classes]
    manager, steps, _ = followed(monkeypatch, "5.24")
    manager.batch_processor = processor = Processor("5.24")
    manager.batch_processor.scheduler.add_waiting_request(State("5.24", "next", 1))
    manager.step()
    assert [dict(vars(each)) for each in classes] != before
    tailwatch.uninstall()
    assert [dict(vars(each)) for each in classes] == before
    for each in (processor, processor.scheduler, processor.inputs_and_outputs):
        assert not [name for name in vars(each) if callable(getattr(type(each), name, None))]
    count = len(steps())
    manager.step()
    assert len(steps()) == count


def test_requests_that_are_cancelled_as_they_wait_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, of those that the scheduler has."""
    processor = Processor("5.24")
    steps, scheduler = TransformersSteps(processor), processor.scheduler
    for number in range(1000):
        state = State("5.24", str(number), 3)
        scheduler.add_waiting_request(state)
        steps.queued((state,), None, None)
        if number:
            del scheduler.waiting_requests[state.request_id]
    assert len(steps._new) <= 2
    processor.prepare_next_batch()
    assert [each.req_id for each in steps.prepared((), None, True).scheduled_new_reqs] == ["0"]  # type: ignore[union-attr]


# ---- results ----


class OutputRouter:
    """Calls handlers in the event loop."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def deliver_batch(self, outputs: list[Any]) -> None:
        for each in outputs:
            handler, loop = self.handlers[each.request_id]
            loop.call_soon_threadsafe(handler, each)


class ResultsManager:
    """What a server calls."""

    def __init__(self) -> None:
        self.output_router = OutputRouter()

    def add_request(self, input_ids: Any, request_id: str | None = None, streaming: bool = False) -> str | None:
        return request_id

    def register_result_handler(self, request_id: str, callback: Any) -> None:
        self.output_router.handlers[request_id] = (callback, asyncio.get_running_loop())


def result(request_id: str, finished: bool = False) -> Any:
    return SimpleNamespace(request_id=request_id, is_finished=lambda: finished)


async def deliver(manager: Any, router: Any, serving: list[Any], got: list[str]) -> None:
    """Results of two requests, of which a stream of ours is the first's; its second is its last."""
    manager.output_router = router
    manager.add_request([1], "mine", streaming=True)
    manager.register_result_handler("mine", lambda output: got.append(output.request_id))
    serving.append(None)
    manager.add_request([1], "other", streaming=True)
    manager.register_result_handler("other", lambda output: got.append(output.request_id))
    for finished in (False, True, False):
        router.deliver_batch([result("other"), result("mine", finished)])
        await asyncio.sleep(0)  # the loop calls what waits


def hooked(
    monkeypatch: pytest.MonkeyPatch, serving: list[Any], calls: list[Any], **methods: Any
) -> tuple[Any, Any, Any]:
    """A manager's class and a router's, with these methods in place of theirs, and the hook on them."""
    Manager: Any = type("ContinuousBatchingManager", (), {**vars(ResultsManager), **methods})
    Router: Any = type("OutputRouter", (), {**vars(OutputRouter), **methods})
    loaded(monkeypatch, MODULE, ContinuousBatchingManager=Manager, OutputRouter=Router)
    core = tailwatch.install(gc="off", role="api").core
    serving.append(core.stream("m", "/v1", None, "", ""))
    watched = SimpleNamespace(
        expect=core.expect,
        received=lambda streams, outputs, key, came: (
            calls.append((outputs[0].request_id, key, came)) or core.received(streams, outputs, key, came)
        ),
    )
    hook = OutputHook(OUTPUTS, watched, lambda: serving[-1], lambda: calls.append("failed"), calls.append)  # type: ignore[arg-type]
    hook.wrap_loaded()
    return Manager, Router, hook


def test_results_reach_the_stream_of_the_task_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time at which they were made; those of no stream go as they went."""
    calls: list[Any] = []
    serving: list[Any] = []
    Manager, Router, hook = hooked(monkeypatch, serving, calls)
    got: list[str] = []
    asyncio.run(deliver(Manager(), Router(), serving, got))
    assert got == ["other", "mine"] * 3
    assert [name for name, *_ in calls] == ["mine", "mine"]
    assert calls[0][1] < calls[0][2] / 1e9 < calls[1][1] < calls[1][2] / 1e9
    assert hook.undo() == []
    assert vars(Manager)["add_request"] is vars(ResultsManager)["add_request"]


def test_a_step_is_recorded_before_its_results_reach_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may send them at once, while the engine's thread still updates: their wait in the engine is known then. The
    stamp of the results is that of the step."""
    seen: list[int] = []
    notes: list[str] = []

    class Router:
        def deliver_batch(self, outputs: list[Any]) -> None:
            seen.append(len(StepRecords(watch.core.address).steps()))

    class Delivering(Processor):
        def __init__(self) -> None:
            super().__init__("5.24")
            self.output_router = Router()

        def update_batch(self) -> None:
            super().update_batch()
            self.output_router.deliver_batch([result("mine")])

    fresh: Any = type("ContinuousBatchingManager", (), {**vars(Manager), **vars(ResultsManager)})
    fresh.__init__ = Manager.__init__
    loaded(monkeypatch, MODULE, ContinuousBatchingManager=fresh, OutputRouter=Router)
    watch = tailwatch.install(gc="off", role="engine")
    watched = SimpleNamespace(expect=lambda *args: None, received=lambda *args: None)
    hook = OutputHook(OUTPUTS, watched, lambda: SimpleNamespace(closed=False), lambda: None, notes.append)  # type: ignore[arg-type]
    hook.wrap_loaded()
    manager = fresh(Delivering())
    manager.add_request([1], "mine")
    manager.batch_processor.scheduler.add_waiting_request(State("5.24", "mine", 1))
    for _ in range(4):
        manager.step()
    recorded = StepRecords(watch.core.address).steps()
    assert seen == list(range(len(recorded) - 3, len(recorded) + 1))
    assert [each.requests for each in recorded[-3:]] == [1, 1, 1]
    assert notes == []


def test_a_later_version_s_arguments_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them, or by other names: what is not found is not stamped, the host gets what it gave."""

    def register(self: Any, request: str, *, handler: Any, loop: Any) -> str:
        self.output_router.handlers[request] = (handler, loop)
        return request

    def deliver(self: Any, results: list[Any], *, drain: bool) -> int:
        for each in results:
            handler, loop = self.handlers[each.request_id]
            loop.call_soon_threadsafe(handler, each)
        return len(results)

    calls: list[Any] = []
    got: list[Any] = []
    Manager, Router, _ = hooked(monkeypatch, [], calls, register_result_handler=register, deliver_batch=deliver)

    async def served() -> None:
        manager, router = Manager(), Router()
        manager.output_router = router
        assert manager.add_request([1], request_id="mine") == "mine"
        loop = asyncio.get_running_loop()
        assert manager.register_result_handler(request="mine", handler=got.append, loop=loop) == "mine"
        assert router.deliver_batch(results=[result("mine")], drain=True) == 1
        await asyncio.sleep(0)

    asyncio.run(served())
    assert [each.request_id for each in got] == ["mine"]
    assert calls == []


def test_a_handler_s_own_arguments_and_errors_are_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """By keyword too, and what it is given beside the result."""

    def deliver(self: Any, outputs: list[Any]) -> None:
        for each in outputs:
            self.handlers[each.request_id][0](each, last=True)

    calls: list[Any] = []
    Manager, Router, _ = hooked(monkeypatch, [], calls, deliver_batch=deliver)

    def handle(output: Any, last: bool) -> None:
        raise RuntimeError("the host's")

    async def served() -> None:
        manager, router = Manager(), Router()
        manager.output_router = router
        manager.add_request([1], "mine")
        manager.register_result_handler(request_id="mine", callback=handle)
        with pytest.raises(RuntimeError, match="the host's"):
            router.deliver_batch(outputs=[result("mine")])

    asyncio.run(served())
    assert calls == []
