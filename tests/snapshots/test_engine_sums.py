"""What an engine's steps add up to: in the snapshot, in its differences and saved, and in every exported format."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import tailwatch
from tailwatch import snapshots
from tailwatch.export.prometheus.render import render
from tailwatch.snapshots import serialization

from ..export.test_core_metrics import INFO
from ..integrations.test_scheduler_steps import Scheduler, Stats, decoding, follow, scheduler_output


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    tailwatch.uninstall()


def followed() -> Scheduler:
    """A scheduler whose steps are read; add plans and call step()."""
    watch = tailwatch.install(gc="off", role="engine")
    scheduler = Scheduler()
    follow(watch.core, scheduler)
    return scheduler


def run(scheduler: Scheduler, *plans: Stats) -> float:
    """Seconds from the first step's schedule to the last one's end, by a clock of our own."""
    begin = time.monotonic()
    scheduler.plans += plans
    for _ in plans:
        scheduler.step()
        scheduler.waiting = ["next"]
    return time.monotonic() - begin


def only() -> snapshots.EngineSteps:
    [engine] = tailwatch.snapshot().engines
    return engine


def test_the_sums_are_those_of_the_plans() -> None:
    """Tokens, requests and preemptions as planned; the lengths and the parts sum to the time that passed."""
    scheduler = followed()
    assert tailwatch.snapshot().engines == []
    scheduler.graph = Stats(runtime_mode="CUDAGraphMode.FULL")
    prompt = scheduler_output("0.33", {"a": 1, "b": 300}, ("b",), preempted={"c"})
    again = scheduler_output("0.33", {"a": 1, "c": 200}, resumed={"c"})
    took = run(scheduler, decoding("0.33", 3), prompt, again, decoding("0.33", 5))
    engine = only()
    assert engine.process == "engine-0"
    assert engine.tokens == {"prefill": 300, "decode": 3 + 1 + 2 + 5, "recompute": 199}
    assert (engine.requests, engine.preempted) == (3 + 2 + 2 + 5, 1)
    assert engine.graphs == {"unknown": 0, "full": 4, "piecewise": 0, "eager": 0}
    assert {work: lengths.count for work, lengths in engine.steps.items()} == {"decode": 2, "prefill": 2}
    whole = sum(lengths.sum for lengths in engine.steps.values())
    assert whole == pytest.approx(sum(engine.parts.values()), abs=1e-9)
    assert 0.5 * took < whole <= took
    assert [step.prefill_of for step in engine.last] == ["", "b", "", ""]
    assert sum(step.seconds for step in engine.last) == pytest.approx(whole, abs=1e-6)


def test_a_difference_has_what_came_in_between() -> None:
    scheduler = followed()
    run(scheduler, decoding("0.33", 3))
    before = tailwatch.snapshot()
    run(scheduler, scheduler_output("0.33", {"a": 1, "b": 64}, ("b",)), decoding("0.33", 2))
    [engine] = (tailwatch.snapshot() - before).engines
    assert engine.tokens == {"prefill": 64, "decode": 3, "recompute": 0}
    assert [step.requests for step in engine.last] == [2, 2]
    assert engine.steps["decode"].count == engine.steps["prefill"].count == 1


def test_it_is_saved_and_read_back() -> None:
    scheduler = followed()
    run(scheduler, scheduler_output("0.33", {"b": 64}, ("b",)))
    taken = tailwatch.snapshot()
    saved = serialization.from_dict(json.loads(json.dumps(taken.as_dict())))
    [read], [engine] = saved.engines, taken.engines
    assert (read.tokens, read.cost.prefill_token) == (engine.tokens, None)
    assert read.last[0].prefill_of == "b"
    assert read.steps["prefill"].sum == engine.steps["prefill"].sum


def test_the_cost_of_a_token_is_what_was_planted() -> None:
    """The device takes 2 ms, and 10 us for each token of a prompt; the truth is by a clock in the device itself."""
    scheduler = followed()
    spent = {False: [0.0, 0], True: [0.0, 0]}

    def answer() -> Any:
        tokens = sum(count for count in scheduler.now.values() if count > 1)  # type: ignore[attr-defined]
        begin = time.monotonic()
        time.sleep(0.002 + 10e-6 * tokens)
        spent[tokens > 0][0] += time.monotonic() - begin
        spent[tokens > 0][1] += tokens or 1
        return Stats(sampled_token_ids=[])

    scheduler.answer = answer  # type: ignore[method-assign]
    for number in range(60):
        plan = decoding("0.33", 4) if number % 3 else scheduler_output("0.33", {"a": 1, "b": 200 + 5 * number}, ("b",))
        scheduler.now = plan.num_scheduled_tokens  # type: ignore[attr-defined]
        run(scheduler, plan)
    cost, decode_step = only().cost, spent[False][0] / spent[False][1]
    prompts = only().steps["prefill"].count
    truth = (spent[True][0] - prompts * decode_step) / spent[True][1]
    assert cost.decode_step == pytest.approx(
        decode_step, rel=0.5
    )  # a busy machine adds to the clock of the device or of the step
    assert cost.prefill_token == pytest.approx(truth, rel=0.5)
    assert cost.decode_request is None  # all steps of decoding alone had as many


def test_they_are_metrics_and_a_process_without_has_none() -> None:
    """By the official parser; tests/export/test_core_metrics.py compares OTLP."""
    scheduler = followed()
    assert "tailwatch_engine_" not in rendered(tailwatch.snapshot())
    prompt = scheduler_output("0.33", {"a": 1, "b": 300}, ("b",))
    run(scheduler, *(decoding("0.33", 1 + n % 3) for n in range(12)), *(prompt for _ in range(9)))
    taken = tailwatch.snapshot()
    text = rendered(taken)
    families = {family.name: family for family in text_string_to_metric_families(text + "# EOF\n")}
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for name, family in families.items()
        if name.startswith("tailwatch_engine_")
        for sample in family.samples
    }
    [engine] = taken.engines
    where = ("process", "engine-0")
    assert found["tailwatch_engine_tokens_total", ("kind", "prefill"), where] == 2700
    assert found["tailwatch_engine_scheduled_requests_total", where] == engine.requests == 24 + 18
    assert found["tailwatch_engine_step_seconds_count", where, ("work", "prefill")] == 9
    assert found["tailwatch_engine_requests", where, ("state", "running")] == 2
    assert found["tailwatch_engine_kv_cache_usage_ratio", where] == pytest.approx(0.25, abs=1e-4)
    cost = {key[2][1]: value for key, value in found.items() if key[0] == "tailwatch_engine_step_cost_seconds"}
    assert cost == {name: pytest.approx(getattr(engine.cost, name), abs=1e-9) for name in cost}
    assert set(cost) == {"decode_step", "decode_request", "prefill_token"}


def rendered(snapshot: snapshots.Snapshot) -> str:
    """OpenMetrics."""
    return bytes(render(snapshot, kind="openmetrics", **INFO)).decode()
