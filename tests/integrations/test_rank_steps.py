"""The steps of ranks: what vLLM's workers are called with, as 0.10 and 0.33 have it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch._cold import ffi, lib
from tailwatch.diagnose.why import late_tokens
from tailwatch.snapshots.model import SlowGap
from tailwatch.snapshots.step_records import StepEvent, StepRecords, request_hash

from ..support.process import Python
from ..support.waiting import until

NAME = "vllm.v1.worker.gpu_worker"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


def scheduled(tokens: int = 1, computed: int = 7, new: bool = False) -> SimpleNamespace:
    """What a worker is called with."""
    made = [SimpleNamespace(req_id="a", num_computed_tokens=computed)] if new else []
    cached = SimpleNamespace(req_ids=[] if new else ["a", "b"], num_computed_tokens=[] if new else [computed, 3])
    return SimpleNamespace(total_num_scheduled_tokens=tokens, scheduled_new_reqs=made, scheduled_cached_reqs=cached)


def worker_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Worker:
        def __init__(self, rank: int = 0, tensor_parallel_size: int = 2) -> None:
            self.rank = rank
            sizes = SimpleNamespace(tensor_parallel_size=tensor_parallel_size)
            self.vllm_config = SimpleNamespace(parallel_config=sizes)

        def execute_model(self, scheduler_output: Any) -> Any:
            """Runs it."""
            if scheduler_output.total_num_scheduled_tokens > 100:
                raise ValueError("too many")
            return scheduler_output

    module = ModuleType(NAME)
    module.__spec__ = importlib.util.spec_from_loader(NAME, None)
    module.Worker = Worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, NAME, module)
    return type("CPUWorker", (Worker,), {})


def recorded() -> list[StepEvent]:
    """By this process."""
    core = tailwatch.install(gc="off", role="worker").core
    return StepRecords(core.address).events()


def test_each_step_of_a_rank_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it entered and left, which step it was, which rank, and which ranks it meets."""
    worker = worker_class(monkeypatch)(rank=3)
    watch = tailwatch.install(gc="off", role="worker")
    before = _hot.now() / 1e9
    outputs = [scheduled(9, 0, new=True), scheduled(2, 9), scheduled(2, 10)]
    assert [worker.execute_model(outputs[0]), worker.execute_model(scheduler_output=outputs[1])] == outputs[:2]
    worker.execute_model(outputs[2])
    events = recorded()
    assert [event.request for event in events] == [request_hash(mark) for mark in ("a 0 9", "a 9 2", "a 10 2")]
    assert {(event.kind, event.detail) for event in events} == {("rank", 1 << 32 | 3)}
    times = [time for event in events for time in (event.start, event.stop)]
    assert times == sorted(times)
    assert before <= times[0]
    assert watch.steps.names == ()  # it is no step of an engine
    assert not tailwatch.snapshot().steps


def test_a_step_without_tokens_meets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV is moved in it, nothing is computed."""
    worker = worker_class(monkeypatch)()
    tailwatch.install(gc="off", role="worker")
    worker.execute_model(scheduled(0))
    assert recorded() == []


def test_what_a_step_raises_is_the_worker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has left it."""
    worker = worker_class(monkeypatch)()
    tailwatch.install(gc="off", role="worker")
    with pytest.raises(ValueError, match="too many"):
        worker.execute_model(scheduled(101))
    [event] = recorded()
    assert event.start < event.stop


def test_what_cannot_be_read_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker goes on."""
    worker = worker_class(monkeypatch)()
    watch = tailwatch.install(gc="off", role="worker")
    del worker.vllm_config
    assert [worker.execute_model(scheduled()) is not None for _ in range(2)] == [True, True]
    assert recorded() == []
    [note] = [note for note in watch.notes if "execute_model" in note]
    assert "which rank its steps wait for is not known" in note
    assert "vllm_config" in note


def test_a_worker_that_has_changed_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of what is absent."""
    Worker = worker_class(monkeypatch).__mro__[1]
    del Worker.execute_model
    watch = tailwatch.install(gc="off", role="worker")
    [note] = [note for note in watch.notes if "execute_model" in note]
    assert note.endswith("vllm.v1.worker.gpu_worker: which rank its steps wait for is not known")


def test_uninstall_puts_the_method_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound method that other code keeps calls it and records nothing."""
    Worker = worker_class(monkeypatch).__mro__[1]
    before = dict(vars(Worker))
    tailwatch.install(gc="off", role="worker")
    assert Worker.execute_model.__doc__ == "Runs it."
    kept = Worker().execute_model
    assert not [sentence for sentence in tailwatch.uninstall() or () if "execute_model" in sentence]
    assert dict(vars(Worker)) == before
    assert kept(scheduled()) is not None


def test_an_engine_s_own_process_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are recorded as they are."""
    core = tailwatch.install(gc="off", role="engine").core
    ring = ffi.addressof(ffi.cast("tw_segment *", core.address), "step_ring")
    lib.tw_step_write(ring, ffi.new("tw_step_record *", {"done_ns": 2000, "key_ns": 1000, "requests": 1}))
    number = core.rank_enters("first", 0, 0)
    core.rank_leaves(number)
    assert number == 0 and StepRecords(core.address).events() == []


def test_a_fork_child_does_not_leave_its_parent_s_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it records begins with its own."""
    core = tailwatch.install(gc="off", role="worker").core
    number = core.rank_enters("parent", 0, 0)
    if (pid := os.fork()) == 0:
        core.rank_leaves(number)
        os._exit(len(StepRecords(core.address).events()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    core.rank_leaves(number)
    [event] = StepRecords(core.address).events()
    assert event.request == request_hash("parent")
    with pytest.raises(TypeError):
        core.rank_enters("mark", 1)  # type: ignore[call-arg]
    with pytest.raises(OverflowError):
        core.rank_leaves(-1)


# ---- a group ----

STEPS, STEP, LATE = 600, 20_000_000, 150_000_000  # ns
MEMBER = """
import json, sys
import tailwatch
from tailwatch._cold import ffi, lib

role, directory = sys.argv[1:]
watch = tailwatch.install(role=role, dir=directory, engine="1", gc="off")
ring = ffi.addressof(ffi.cast("tw_segment *", watch.core.address), "step_ring")
print(json.dumps(role), flush=True)
for line in sys.stdin:
    for number, (at, lasted) in enumerate(json.loads(line), 1):
        if role == "engine":
            record = {"update_ns": at - 1000, "done_ns": at, "key_ns": at - 500, "requests": 1, "decode_requests": 1}
            record["part"] = [0, 0, 0, 0, lasted // 16, 0]
            lib.tw_step_write(ring, ffi.new("tw_step_record *", record))
        else:
            lib.tw_rank_leaves(ring, lib.tw_rank_enters(ring, number, int(role[-1]), at), at + lasted)
    print(json.dumps(number), flush=True)
"""


def last_token_of(directory: Path, workers: int) -> SlowGap:
    """Of a stream whose engine waits for its last worker once."""
    done = [time.monotonic_ns() - (2 + STEPS - i) * STEP for i in range(STEPS)]
    done.append(done[-1] + STEP + LATE)
    steps = [(at, STEP) for at in done[:-1]] + [(done[-1], STEP + LATE)]
    entered = [at - STEP + 2_000_000 for at in done[:-1]] + [done[-2] + 2_000_000]
    with contextlib.ExitStack() as stack:
        roles = ["engine", *(f"worker_{i}" for i in range(workers))]
        members = [stack.enter_context(Python(MEMBER, role, directory)) for role in roles]
        assert [member.read() for member in members] == roles
        members[0].ask(json.dumps(steps))
        for member in members[1:]:
            late = LATE if member is members[-1] else 0
            member.ask(json.dumps([*((at, STEP // 2) for at in entered[:-1]), (entered[-1] + late, STEP // 2)]))
        watch = tailwatch.install(role="api", dir=str(directory), gc="off")
        watch.core.renew()
        stream: Any = watch.core.stream("m", "/v1", done[0], "r", "")
        stream.bind("1")
        for at in done[1:]:
            stream.received(at - 500, at, at + 1000)
            stream.token(at=at + 2000)
        stream.close()
        return late_tokens(tailwatch.snapshot())[0]


def test_a_token_names_the_rank_that_its_step_waited_for(tmp_path: Path) -> None:
    """For as long as that was late, measured; of the process that it is."""
    gap = last_token_of(tmp_path / "group", workers=2)
    [cause] = [cause for cause in gap.causes if cause.cause == "rank"]
    assert (cause.source, cause.name, cause.certainty) == ("worker_1", "rank 1", "measured")
    assert cause.seconds == pytest.approx(LATE / 1e9, rel=0.01)
    assert sum(each.seconds for each in gap.causes) == pytest.approx(gap.gap - gap.typical)


def test_one_worker_is_waited_for_as_the_device(tmp_path: Path) -> None:
    """There is nothing to compare it with."""
    gap = last_token_of(tmp_path / "group", workers=1)
    assert gap.causes[0].cause == "device"
    assert "rank" not in {cause.cause for cause in gap.causes}


def test_the_thread_of_a_rank_is_followed_while_streams_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with engine steps is: its waits for a CPU, or for the interpreter lock, are what the step waited for."""
    worker = worker_class(monkeypatch)()
    watch = tailwatch.install(gc="off", role="worker")
    segment = ffi.cast("const tw_segment *", watch.core.address)

    def followed() -> list[Any]:
        return [track for track in segment.host.track if track.step_limit_ns and track.thread]

    worker.execute_model(scheduled())
    assert followed() == []
    watch.core.works(True)

    def points() -> int:
        worker.execute_model(scheduled())
        return sum(track.point_head for track in followed())

    until(lambda: points() > 10, "points of a rank's thread")
    assert len(followed()) == 1
    assert not tailwatch.snapshot().steps
    tailwatch.uninstall()
    assert followed() == []
