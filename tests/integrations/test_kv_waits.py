"""Waits for a KV connector: a request that is in no step because its KV comes from elsewhere, as vLLM's scheduler has
it in three ages. What is read is the connector's own interface, and the output of the model runner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.integrations.vllm import PARTS
from tailwatch.snapshots.step_records import StepEvent, StepRecords, request_hash

from .test_scheduler_hook import Engine, install
from .test_scheduler_steps import Request, Scheduler, Stats, scheduler_output

AGES = ("0.10", "0.12", "0.33")
KV_PARTS = tuple(part.name for part in PARTS if part.name.startswith("connector."))
NOW, WAITS, UNDECIDED = (9, False), (9, True), (None, False)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


class Connector:
    """Answers what a test sets for a request: how many tokens it has, and whether they come while the request waits."""

    def __init__(self) -> None:
        self.has: dict[str, Any] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Any:
        """The next answer; the last one again and again."""
        answers = self.has.get(request.request_id, [(0, False)])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def update_state_after_alloc(self, request: Request, blocks: object, num_external_tokens: int) -> None:
        """Nothing."""


class Loading(Scheduler):
    """Takes requests in as vLLM's does: one whose KV comes from elsewhere has blocks first, and is in a step once the
    output of a model runner has its id. room: of blocks."""

    def __init__(self, age: str = "0.33") -> None:
        super().__init__(age)
        self.connector = Connector()
        self.queue: list[Request] = []
        self.loading: set[str] = set()
        self.received: set[str] = set()
        self.arrives: Any = None
        self.room = True

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        self.queue.append(request)

    def schedule(self, throttle_prefills: bool = False) -> Stats:
        new: list[str] = []
        for request in list(self.queue):
            external = self._external(request)
            if external is None:
                continue
            if not self.room:
                break
            if self.connector is not None:
                self.connector.update_state_after_alloc(request, object(), external[0])
            if external[1]:
                self.loading.add(request.request_id)
                continue
            self.queue.remove(request)
            new.append(request.request_id)
        tokens = {**dict.fromkeys(self.running, 1), **dict.fromkeys(new, 5)}
        return scheduler_output(self.age, tokens, tuple(new))

    def _external(self, request: Request) -> Any:
        """Tokens, and whether it waits for them; None: it is skipped."""
        if request.request_id in self.received:
            return 0, False
        if request.request_id in self.loading:
            return None
        if self.connector is None:
            return 0, False
        tokens, waits = self.connector.get_num_new_matched_tokens(request, 0)
        return None if tokens is None else (tokens, waits)

    def update_from_output(self, scheduler_output: Stats, model_runner_output: Stats) -> dict[int, Stats]:
        output = model_runner_output.kv_connector_output  # type: ignore[attr-defined]
        came = getattr(output, "finished_recving", None)
        self.received |= came if isinstance(came, set) else set()
        self.loading -= self.received
        return super().update_from_output(scheduler_output, model_runner_output)

    def answer(self) -> Stats:
        more = {} if self.age == "0.10" else {"cudagraph_stats": None}
        arrived, self.arrives = self.arrives, None
        output = Stats(finished_sending=None, finished_recving=arrived) if isinstance(arrived, set) else arrived
        return Stats(sampled_token_ids=[], kv_connector_output=output, **more)


def follow(core: _hot.Core, scheduler: Loading) -> _hot.SchedulerSteps:
    """Around its methods, and its connector's."""
    steps = _hot.SchedulerSteps(core, scheduler, "m")
    for name in ("schedule", "get_grammar_bitmask", "update_from_output", "add_request"):
        setattr(scheduler, name, steps.around(name, getattr(scheduler, name)))
    for name in (part.partition(".")[2] for part in KV_PARTS):
        setattr(scheduler.connector, name, steps.around(name, getattr(scheduler.connector, name)))
    return steps


def followed(scheduler: Loading) -> Callable[[], list[tuple[str, str, StepEvent]]]:
    """What is recorded of its requests: kind, id, event."""
    watch = tailwatch.install(gc="off", role="engine")
    watch.kept = follow(watch.core, scheduler)  # type: ignore[attr-defined]
    records = StepRecords(watch.core.address)

    def events() -> list[tuple[str, str, StepEvent]]:
        names = {request_hash(name): name for name in scheduler.requests}
        return [(event.kind, names[event.request], event) for event in records.events()]

    return events


def took(event: StepEvent) -> float:
    return event.stop - event.start


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("busy", [True, False])
def test_a_wait_for_remote_kv_is_an_event(age: str, busy: bool) -> None:
    """From the blocks that the scheduler gave it to the output that has its id, whether or not others decode; what
    follows is the queue's."""
    scheduler = Loading(age)
    events = followed(scheduler)
    scheduler.running = ["other"] if busy else []
    scheduler.connector.has = {"new": [WAITS]}
    scheduler.add_request(Request("new"))
    before = time.monotonic()
    scheduler.step()
    begun = time.monotonic()
    time.sleep(0.02)
    scheduler.step()
    assert events() == []
    scheduler.arrives = {"new", "other"}
    ending = time.monotonic()
    scheduler.step()
    ended = time.monotonic()
    time.sleep(0.01)
    scheduler.step()
    (kind, name, wait), (last, _, queue) = events()
    assert (kind, name, last) == ("kv_wait", "new", "queued")
    assert before <= wait.start <= begun and ending <= wait.stop <= ended
    assert queue.start <= wait.start and wait.stop + 0.01 <= queue.stop


def test_kv_that_comes_in_the_step_itself_is_no_wait() -> None:
    """The connector loads as the model runs; or it has nothing."""
    scheduler = Loading()
    events = followed(scheduler)
    scheduler.connector.has = {"a": [NOW]}
    for name in "ab":
        scheduler.add_request(Request(name))
    scheduler.step()
    assert [event[:2] for event in events()] == [("queued", "a"), ("queued", "b")]


def test_a_connector_without_an_answer_is_a_wait() -> None:
    """Until it has one; then its load is a wait of its own."""
    scheduler = Loading()
    events = followed(scheduler)
    scheduler.connector.has = {"a": [UNDECIDED, UNDECIDED, WAITS], "b": [UNDECIDED, (0, False)]}
    for name in "ab":
        scheduler.add_request(Request(name))
    scheduler.step()
    time.sleep(0.01)
    scheduler.step()  # b is in it
    time.sleep(0.01)
    scheduler.step()
    time.sleep(0.01)
    scheduler.arrives = {"a"}
    scheduler.step()
    scheduler.step()
    kinds = [event[:2] for event in events()]
    assert kinds == [("kv_wait", "b"), ("queued", "b"), ("kv_wait", "a"), ("kv_wait", "a"), ("queued", "a")]
    [b, first, second] = [event for kind, _, event in events() if kind == "kv_wait"]
    assert took(b) >= 0.01 and took(first) >= 0.02 and took(second) >= 0.01
    assert first.stop <= second.start


def test_while_there_is_no_room_it_waits_for_that() -> None:
    """The connector has its KV, and there are no blocks to load it into: queued."""
    scheduler = Loading()
    events = followed(scheduler)
    scheduler.connector.has = {"a": [WAITS]}
    scheduler.room = False
    scheduler.add_request(Request("a"))
    scheduler.step()
    time.sleep(0.02)
    room = time.monotonic()
    scheduler.room = True
    scheduler.step()
    scheduler.arrives = {"a"}
    scheduler.step()
    scheduler.step()
    (_, _, wait), (_, _, queue) = events()
    assert wait.start >= room and queue.start < room - 0.02


def test_a_load_that_failed_ends_with_the_first_step() -> None:
    """Its id is in no output: the request is computed here."""
    scheduler = Loading()
    events = followed(scheduler)
    scheduler.connector.has = {"a": [WAITS]}
    scheduler.add_request(Request("a"))
    scheduler.step()
    scheduler.received.add("a")
    scheduler.step()
    (kind, _, wait), (last, _, queue) = events()
    assert (kind, last) == ("kv_wait", "queued") and wait.stop == queue.stop


@pytest.mark.parametrize("answer", [None, (), (1,), (1, 2, 3), "no", ("many", True), (9, object())])
def test_answers_of_another_shape_are_no_wait(answer: Any) -> None:
    """Nor an error; blocks for another request than was asked for are none of it."""
    scheduler = Loading()
    events = followed(scheduler)
    scheduler.connector.has = {"a": [answer]}
    request, other = Request("a"), Request("b")
    assert scheduler.connector.get_num_new_matched_tokens(request, 0) == answer
    scheduler.connector.update_state_after_alloc(other, None, num_external_tokens=9)
    assert scheduler.connector.get_num_new_matched_tokens(request=request, num_computed_tokens=0) == answer
    scheduler.connector.update_state_after_alloc(object(), None, 0)
    scheduler.arrives = {"a"}
    scheduler.step()
    assert events() == []


def test_what_a_connector_raises_is_the_engine_s() -> None:
    """It goes through."""
    scheduler = Loading()
    followed(scheduler)
    scheduler.connector.has = {"a": []}
    with pytest.raises(IndexError):
        scheduler.connector.get_num_new_matched_tokens(Request("a"), 0)


def test_an_output_of_another_shape_ends_nothing() -> None:
    """A model runner whose output has no ids: the first step ends the wait."""
    scheduler = Loading()
    events = followed(scheduler)
    scheduler.connector.has = {"a": [WAITS]}
    scheduler.add_request(Request("a"))
    scheduler.step()
    for ids in (7, [object(), None, "b"], None):
        scheduler.arrives = Stats(finished_recving=ids)
        scheduler.step()
    scheduler.arrives = Stats()
    scheduler.step()
    assert events() == []


def test_requests_that_were_aborted_meanwhile_are_let_go() -> None:
    """They take no memory for ever."""
    scheduler = Loading()
    events = followed(scheduler)
    ids = [f"gone-{i}" for i in range(10_000)]
    kept = [sys.getrefcount(each) for each in ids]
    for each in ids:
        scheduler.connector.has = {each: [UNDECIDED]}
        scheduler.connector.get_num_new_matched_tokens(Request(each), 0)
    assert sum(now > before for now, before in zip(map(sys.getrefcount, ids), kept, strict=True)) < 4096
    scheduler.connector.has = {"a": [WAITS]}
    scheduler.add_request(Request("a"))
    scheduler.step()
    scheduler.arrives = {"a"}
    scheduler.step()
    assert [event[:2] for event in events()] == [("kv_wait", "a")]


# ---- in an engine ----


def engine_with(monkeypatch: pytest.MonkeyPatch, connector: Any) -> tuple[Any, Any]:
    """An engine whose scheduler has that connector, and the watch."""

    class Made(Engine):
        def make_scheduler(self) -> Any:
            scheduler = Loading()
            scheduler.connector = connector
            return scheduler

    Core, watch = install(monkeypatch, type("Made", (), {**vars(Engine), **vars(Made)}))
    return Core(), watch


def test_a_connector_is_followed_with_its_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """By attributes of the instance, which uninstall() takes away."""
    engine, watch = engine_with(monkeypatch, Connector())
    engine.scheduler.connector.has = {"a": [WAITS]}
    engine.step()
    assert len(vars(engine.scheduler.connector)) == 3
    engine.scheduler.add_request(Request("a"))
    engine.step()
    engine.scheduler.arrives = {"a"}
    engine.step()
    assert [event.kind for event in StepRecords(watch.core.address).events()] == ["kv_wait"]
    assert not any("connector" in note for note in watch.notes)
    tailwatch.uninstall()
    assert set(vars(engine.scheduler.connector)) == {"has"}


def test_an_engine_without_a_connector_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no note for the doctor."""
    engine, watch = engine_with(monkeypatch, None)
    engine.step()
    engine.scheduler.add_request(Request("a"))
    engine.step()
    assert not any("connector" in note for note in watch.notes)
    assert [event.kind for event in StepRecords(watch.core.address).events()] == ["queued"]


def test_a_connector_of_another_version_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its waits count as queued, and the steps are split all the same."""
    engine, watch = engine_with(monkeypatch, object())
    for _ in range(3):
        engine.step()
    notes = [note for note in watch.notes if "connector" in note]
    assert len(notes) == 2
    assert all("it counts as queued" in note for note in notes)
    assert StepRecords(watch.core.address).count == 0
