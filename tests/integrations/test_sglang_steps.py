"""SGLang's steps, read off objects as its sources of three ages have them (tests/servers/symbols/sglang.json). No real
SGLang is run here."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.snapshots.step_records import StepRecord, StepRecords

from .test_engine_steps import loaded

AGES = ("0.4.10", "0.5.10", "0.5.23")
Mode = Enum("Mode", "EXTEND DECODE MIXED IDLE DUMMY_FIRST")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class Req:
    """A request: so much of its prompt is left, and so many tokens are to come."""

    def __init__(self, rid: str, prompt: int, tokens: int) -> None:
        self.rid, self.prompt, self.tokens = rid, prompt, tokens
        self.output_ids: list[int] = []
        self.finished_reason: Any = None
        self.to_finish = False

    def finished(self) -> bool:
        return self.finished_reason is not None


class Batch:
    """A ScheduleBatch; its copy, which the overlapping loop processes, has no lengths."""

    def __init__(self, mode: Mode, reqs: list[Req] | None, lengths: list[int] | None = None) -> None:
        self.forward_mode = mode
        self.reqs = reqs
        self.decoding_reqs: list[Req] | None = None
        self.extend_lens = lengths
        self.extend_num_tokens = sum(lengths or ())

    def copy(self) -> Batch:
        other = copy.copy(self)
        other.reqs = list(self.reqs or ())
        del other.extend_lens, other.extend_num_tokens
        return other


def fresh(kind: type) -> Any:
    """A class of its own, to be changed."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (), own)


class SenderWrapper:
    """Sends to the detokenizer. look: what a test looks at meanwhile."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[str], int]] = []
        self.look: Callable[[], object] = lambda: None

    def send_output(self, output: Any, recv_obj: Any = None) -> None:
        self.look()
        self.sent.append((output.rids, output.completion_tokens[0]))


class Scheduler:
    """Prefill first, 100 tokens a step; then all decode."""

    enable_pdmux = False

    def __init__(self, age: str, rank: int = 0) -> None:
        self.age = age
        self.waiting_queue: list[Req] = []
        self.running_batch = Batch(Mode.DECODE, [])
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: 500)
        self.tree_cache = SimpleNamespace(evictable_size=lambda: 250)
        self.max_total_num_tokens = 1000
        self.server_args = SimpleNamespace(served_model_name="m")
        self.result_queue: deque[Any] = deque()
        self.sleeps: dict[str, float] = {}
        self.began: list[float] = []  # forwards
        if age == "0.5.10":
            self.ps = SimpleNamespace(attn_tp_rank=rank)
        elif age == "0.4.10":
            self.attn_tp_rank = rank
        self.sender: Any = fresh(SenderWrapper)()
        if age == "0.5.10":
            self.send_to_detokenizer = self.sender
        elif age == "0.5.23":
            self.ipc_channels = SimpleNamespace(send_to_detokenizer=self.sender)
        # TypeBasedDispatcher: its methods are bound here, before the first step
        self._request_dispatcher = {Req: self.handle_generate_request, SimpleNamespace: self.abort_request}

    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        for each in recv_reqs:
            self._request_dispatcher[type(each)](each)

    def handle_generate_request(self, recv_req: Req) -> None:
        self._add_request_to_queue(recv_req)

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        self.waiting_queue.append(req)

    def abort_request(self, recv_req: Any) -> None:
        self.waiting_queue = [each for each in self.waiting_queue if not each.rid.startswith(recv_req.rid)]
        for each in self.running_batch.reqs or ():
            each.to_finish = each.to_finish or each.rid.startswith(recv_req.rid)

    def get_next_batch_to_run(self, **now: Any) -> Any:
        time.sleep(self.sleeps.get("schedule", 0.0))
        batch = self._next()
        return SimpleNamespace(batch_to_run=batch) if self.age == "0.5.23" else batch

    def _next(self) -> Batch | None:
        if self.waiting_queue:
            lengths = [min(100, each.prompt) for each in self.waiting_queue]
            return Batch(Mode.EXTEND, list(self.waiting_queue), lengths)
        self.running_batch.reqs = [each for each in self.running_batch.reqs or () if not each.finished()]
        return self.running_batch if self.running_batch.reqs else None

    def run_batch(self, batch: Batch, pp_proxy_tensors: Any = None) -> Any:
        self.began.append(time.monotonic())
        time.sleep(self.sleeps.get("run", 0.0))
        return SimpleNamespace(can_run_cuda_graph=batch.forward_mode is Mode.DECODE)

    def process_batch_result(self, batch: Batch, result: Any) -> None:
        time.sleep(self.sleeps.get("device", 0.0))
        for each in batch.reqs or ():
            if each.prompt:
                each.prompt -= min(100, each.prompt)
            if each.prompt == 0:
                each.output_ids.append(1)
                each.finished_reason = "length" if each.to_finish or len(each.output_ids) >= each.tokens else None
                if each in self.waiting_queue:
                    self.waiting_queue.remove(each)
                    self.running_batch.reqs = [*(self.running_batch.reqs or ()), each]
        self.stream_output([each for each in batch.reqs or () if each.output_ids])

    def stream_output(self, reqs: list[Req]) -> None:
        made = [len(each.output_ids) for each in reqs]
        if reqs:
            self.sender.send_output(SimpleNamespace(rids=[each.rid for each in reqs], completion_tokens=made))

    def turn(self, *received: Any) -> None:
        """event_loop_normal."""
        self.process_input_requests(list(received))
        plan = self.get_next_batch_to_run()
        batch = plan.batch_to_run if self.age == "0.5.23" else plan
        if batch is not None:
            self.process_batch_result(batch, self.run_batch(batch))

    def overlapped(self, *received: Any) -> None:
        """event_loop_overlap."""
        self.process_input_requests(list(received))
        plan = self.get_next_batch_to_run()
        batch = plan.batch_to_run if self.age == "0.5.23" else plan
        if batch is not None:
            self.result_queue.append((batch.copy(), self.run_batch(batch)))
        if len(self.result_queue) > 1 or (batch is None and self.result_queue):
            self.process_batch_result(*self.result_queue.popleft())


def followed(
    monkeypatch: pytest.MonkeyPatch, age: str, rank: int = 0
) -> tuple[Scheduler, Callable[[], list[StepRecord]], Any]:
    """A scheduler that is followed, its records from then on, and the watch."""
    kind = fresh(Scheduler)
    state = {"get_parallel": lambda: SimpleNamespace(attn_tp_rank=rank)} if age == "0.5.23" else {}
    module = loaded(monkeypatch, "sglang.srt.managers.scheduler", Scheduler=kind, **state)
    kind.__module__ = module.__name__
    watch = tailwatch.install(gc="off", role="engine")
    scheduler = kind(age, rank)
    scheduler.run_batch(Batch(Mode.IDLE, []))  # what follows it is the first step of any kind
    records = StepRecords(watch.core.address)
    return scheduler, records.steps, watch


@pytest.mark.parametrize("age", AGES)
def test_a_prompt_in_chunks_is_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """Others do not decode meanwhile; the last chunk makes a token."""
    scheduler, steps, watch = followed(monkeypatch, age)
    scheduler._add_request_to_queue(Req("first", 1, 50))
    scheduler.turn()
    scheduler.turn()
    scheduler._add_request_to_queue(Req("long", 250, 50))
    for _ in range(4):
        scheduler.turn()
    assert [(s.requests, s.prefill_tokens, s.decode_requests, s.decode_tokens) for s in steps()] == [
        (1, 1, 0, 0), (1, 0, 1, 1), (1, 100, 0, 0), (1, 100, 0, 0), (1, 50, 0, 0), (2, 0, 2, 2),
    ]  # fmt: skip
    assert [s.prefill_of for s in steps()[2:5]] == ["long"] * 3
    assert [s.graph for s in steps()] == [None, "full", None, None, None, "full"]
    assert [each.kind for each in StepRecords(watch.core.address).events()] == ["queued", "queued"]
    for _ in range(12):
        scheduler.turn()
    assert steps()[-1].kv_use == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("age", AGES)
def test_the_overlapping_loop_answers_the_batch_before(monkeypatch: pytest.MonkeyPatch, age: str) -> None:
    """A copy of it: it was read as it was started."""
    scheduler, steps, _ = followed(monkeypatch, age)
    scheduler._add_request_to_queue(Req("a", 70, 3))
    scheduler.process_batch_result(Batch(Mode.DUMMY_FIRST, None), None)  # what 0.4.10 begins with
    scheduler.overlapped()
    assert steps() == []
    scheduler.waiting_queue[0].prompt = 0  # as the device will have done
    scheduler.running_batch.reqs = [scheduler.waiting_queue.pop()]
    for _ in range(3):
        scheduler.overlapped()
    assert [(s.prefill_tokens, s.decode_tokens) for s in steps()] == [(70, 0), (0, 1), (0, 1)]


@pytest.mark.parametrize(("where", "part"), [("schedule", "schedule"), ("run", "wait"), ("device", "wait")])
def test_time_is_the_part_s_in_which_it_was_spent(monkeypatch: pytest.MonkeyPatch, where: str, part: str) -> None:
    """The forward is started by one call and waited for in the other: all of both is the device's."""
    scheduler, steps, _ = followed(monkeypatch, "0.5.23")
    scheduler._add_request_to_queue(Req("a", 1, 50))
    scheduler.turn()
    scheduler.sleeps[where] = 0.05
    for _ in range(5):
        scheduler.turn()
    found = [dict(each.parts) for each in steps()[-5:]]
    device, host = [each["dispatch"] + each["wait"] for each in found], [each["schedule"] for each in found]
    assert min(device if part == "wait" else host) >= 0.05
    assert min(host if part == "wait" else device) < 0.04


def test_a_prompt_that_is_begun_in_a_step_is_known_in_that_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The overlapping loop starts the forward of a prompt before it answers the batch before: that waits meanwhile."""
    scheduler, steps, watch = followed(monkeypatch, "0.5.23")
    scheduler.overlapped(Req("a", 5, 9))
    scheduler.waiting_queue[0].prompt = 0
    scheduler.running_batch.reqs = [scheduler.waiting_queue.pop()]
    scheduler.overlapped()
    scheduler.overlapped(Req("long", 70, 3), Req("short", 6, 3))
    scheduler.waiting_queue.clear()
    scheduler.overlapped()
    ring = StepRecords(watch.core.address)._ring
    last = len(steps())
    begun = [ring.step[(ring.head - last + i) % len(ring.step)].next_prefill_tokens for i in range(last)]
    assert [(s.prefill_tokens, n) for s, n in zip(steps(), begun, strict=True)] == [(5, 0), (0, 76), (76, 0)]


@pytest.mark.parametrize("turn", ["turn", "overlapped"])
def test_a_request_waits_until_its_forward_begins(monkeypatch: pytest.MonkeyPatch, turn: str) -> None:
    """Not until it has ended, where the call that starts it does all of it, as on a CPU: that is its own prefill."""
    scheduler, steps, watch = followed(monkeypatch, "0.5.23")
    scheduler._add_request_to_queue(Req("a", 5, 3))
    scheduler.sleeps["run"] = 0.01
    for _ in range(2):
        getattr(scheduler, turn)()
    assert len(steps()) == (2 if turn == "turn" else 1)
    [event] = [each for each in StepRecords(watch.core.address).events() if each.kind == "queued"]
    assert event.start <= event.stop <= scheduler.began[1]


def test_a_retracted_request_is_preempted_and_then_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again is no prefill of a new one."""
    scheduler, steps, watch = followed(monkeypatch, "0.5.10")
    victim = Req("victim", 5, 50)
    scheduler._add_request_to_queue(Req("other", 5, 50))
    scheduler._add_request_to_queue(victim)
    scheduler.turn()
    scheduler.running_batch.reqs.remove(victim)  # type: ignore[union-attr]
    victim.prompt = 40
    scheduler._add_request_to_queue(victim, is_retracted=True)
    scheduler.turn()
    assert (steps()[-1].preempted, steps()[-1].prefill_tokens, steps()[-1].recompute_tokens) == (1, 0, 39)
    kinds = [each.kind for each in StepRecords(watch.core.address).events()]
    assert kinds[-2:] == ["preempted", "resumed"]


def test_without_a_front_end_the_engine_s_requests_are_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token, several in a step too; an end by a step."""
    scheduler, _, watch = followed(monkeypatch, "0.5.23")
    scheduler.turn(Req("a", 5, 3))
    scheduler.turn()
    scheduler.turn()
    snapshot = tailwatch.snapshot()
    assert (snapshot.ttft.count, snapshot.itl.count) == (1, 2)
    assert watch.core.load()[0] == 0


@pytest.mark.parametrize("turn", ["turn", "overlapped"])
def test_a_request_that_is_aborted_ends_wherever_it_is(monkeypatch: pytest.MonkeyPatch, turn: str) -> None:
    """In the queue as its input is processed, by a method that was bound before we came; in a batch by its step. The
    others go on."""
    scheduler, _, watch = followed(monkeypatch, "0.5.23")
    step = getattr(scheduler, turn)
    step(Req("running", 0, 50))
    step()
    monkeypatch.setattr(scheduler, "_next", lambda: scheduler.running_batch)  # no room for more
    step(Req("waits", 5, 3), Req("stays", 5, 3))
    assert watch.core.load()[0] == 3
    step(SimpleNamespace(rid="waits"))
    assert watch.core.load()[0] == 2
    step(SimpleNamespace(rid="running"))
    step()
    assert watch.core.load()[0] == 1
    assert [each.rid for each in scheduler.waiting_queue] == ["stays"]


def test_an_abort_between_the_chunks_of_a_prompt_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5.23 drops it before its next step: none ends it."""
    scheduler, _, watch = followed(monkeypatch, "0.5.23")
    scheduler.chunked_req = request = Req("long", 250, 5)  # type: ignore[attr-defined]
    scheduler.turn(request)
    scheduler.turn()
    assert watch.core.load()[0] == 1
    scheduler.chunked_req, request.finished_reason = None, "abort"  # type: ignore[attr-defined]
    scheduler.waiting_queue.clear()
    scheduler.turn()
    assert watch.core.load()[0] == 0


@pytest.mark.parametrize("turn", ["turn", "overlapped"])
def test_requests_are_not_held_by_us(monkeypatch: pytest.MonkeyPatch, turn: str) -> None:
    """Some have images, as tensors. A server that idles keeps none."""
    scheduler, steps, _ = followed(monkeypatch, "0.5.23")
    step = getattr(scheduler, turn)
    request = Req("a", 5, 1)
    step(request)
    for _ in range(3):
        step()
    assert len(steps()) > 0
    gone = weakref.ref(request)
    del request
    gc.disable()
    try:
        scheduler.running_batch.reqs = []
        step()
        assert gone() is None
    finally:
        gc.enable()


def test_unseen_ends_are_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where process_input_requests is not called: what is kept is bounded by what the scheduler has."""
    scheduler, _, watch = followed(monkeypatch, "0.5.23")
    for number in range(6 * 1024):
        scheduler._add_request_to_queue(Req(str(number), 5, 3))
        scheduler.waiting_queue.pop()
    assert watch.core.load()[0] < 4096 + 1024
    scheduler.turn()
    assert watch.core.load()[0] == 0


def test_only_the_first_rank_of_a_group_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others make the same steps."""
    for age in AGES:
        scheduler, steps, _ = followed(monkeypatch, age, rank=1)
        scheduler._add_request_to_queue(Req("a", 5, 3))
        scheduler.turn()
        assert steps() == []
        tailwatch.uninstall()


def test_what_cannot_be_read_is_unknown_and_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is not known: the engine goes on, its steps have lengths."""
    scheduler, steps, watch = followed(monkeypatch, "0.5.23")
    scheduler._add_request_to_queue(Req("a", 5, 50))
    scheduler.turn()
    del scheduler.running_batch.forward_mode
    scheduler.run_batch = type(scheduler).run_batch.__get__(scheduler)  # type: ignore[method-assign]
    monkeypatch.setattr(type(scheduler), "run_batch", lambda self, batch: SimpleNamespace())
    for _ in range(3):
        scheduler.process_batch_result(scheduler.running_batch, SimpleNamespace())
    assert steps()[-1].requests is None
    assert len([each for each in watch.notes if "process_batch_result" in each]) == 1
