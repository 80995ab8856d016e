"""Predictions from hand-made numbers, and what is found of a policy that is not what it should be."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailwatch.diagnose import gc_advice
from tailwatch.snapshots import COLLECTION_REASONS, INTERFERENCES, MEMORY_LIMITS, SLICE_REASONS, Policy

CSRC = Path(__file__).resolve().parents[2] / "csrc"
CAUSES = ("gc0", "gc1", "gc2", "gc_full", "gc_increment", "gc_own")
V311, V314 = (3, 11, 7), (3, 14, 2)


def causes(**values: float) -> dict[str, Any]:
    return {**dict.fromkeys(CAUSES, 0), **values}


def policy(**changed: Any) -> Policy:
    """One that observes."""
    empty = {
        "slices": dict.fromkeys(SLICE_REASONS, 0), "collections": dict.fromkeys(COLLECTION_REASONS, 0),
        "interference": dict.fromkeys(INTERFERENCES, 0), "memory_limits": dict.fromkeys(MEMORY_LIMITS, 0),
        "kind": "observe", "unfrozen": 1_000_000,
    }  # fmt: skip
    return Policy(**{**empty, **changed})


def process(role: str = "api", **changed: Any) -> SimpleNamespace:
    """A heap of a million objects: 1000 young collections of 50 us, and 5 full ones of 200 ms."""
    advised = {
        "role": role, "name": f"{role}-0", "lives": True, "age": 100.0, "policy": policy(),
        "paused": causes(gc0=0.05, gc2=1.0), "collections": causes(gc0=1000, gc2=5),
    }  # fmt: skip
    return SimpleNamespace(**{**advised, **changed})


def snapshot(*processes: Any, delay: float = 8.0, overlap: float = 8.4, role: str = "api") -> Any:
    """Eight streams stood beside each pause."""
    return SimpleNamespace(
        seconds=100.0,
        processes=list(processes) or [process(role)],
        delay_by_source={role: {"ttft": causes(), "itl": causes(gc2=delay - 0.1, gc0=0.1)}},
        overlap_by_source={role: {"ttft": causes(), "itl": causes(gc2=overlap)}},
    )


def test_the_interval_is_what_was_lost_less_the_policy_s_own_work() -> None:
    """1005 collections of 700 objects: the youngest at 50 us, and 30 looks at 30 ns an object."""
    saving = gc_advice.predict(snapshot(), thresholds=(700, 10, 10), version=V311)
    assert saving is not None
    work = 1005 * 50e-6 + 30 * 1005 * 700 * 30e-9
    assert saving.work == pytest.approx(work)
    assert saving.streams == pytest.approx(8.0)
    assert (saving.low, saving.high) == (pytest.approx(8.0 - 8.0 * work), pytest.approx(8.0))
    assert (saving.policy, saving.instead, saving.role) == ("idle", "observe", "api")


def test_time_without_a_cpu_is_not_certain_to_be_saved() -> None:
    """The process would have had none in its slices either; where nothing is certain, nothing is advised."""
    snap = snapshot()
    snap.paused, snap.gc = causes(gc0=0.05, gc2=1.0), SimpleNamespace(cpu=causes(gc2=0.8))
    saving = gc_advice.predict(snap, thresholds=(700, 10, 10), version=V311)
    assert saving is not None
    assert saving.low == pytest.approx(0.8 * 7.9 + 0.1 - saving.work * 8)
    assert saving.high == pytest.approx(8.0)
    for version in (V311, V314):
        snap.gc.cpu = causes(gc2=0.1)
        assert gc_advice.predict(snap, thresholds=(700, 10, 10), version=version) is None


def test_other_thresholds_mean_other_numbers_of_objects() -> None:
    """As they are, or as the version has them."""
    by = {
        known: gc_advice.predict(snapshot(), thresholds=known, version=version)
        for known, version in (((100, 10, 10), V311), (None, V311), ((0, 10, 10), (3, 13, 0)))
    }
    works = [saving.work for saving in by.values() if saving is not None]
    objects = [(work - 1005 * 50e-6) / 30 / 1005 / 30e-9 for work in works]
    assert objects[0] == pytest.approx(100)
    assert objects[1] == pytest.approx(700)
    assert len(objects) == 2  # 2000 a collection, and nothing is certain to be saved


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": policy(kind="idle")},
        {"policy": policy(kind="off")},
        {"policy": policy(kind="freeze", freezes=0)},
        {"policy": policy(kind="unknown")},
    ],
)
def test_where_nothing_is_to_be_advised_nothing_is(changed: dict[str, Any]) -> None:
    """The policy is there already, it is not known which one is, or the freeze has yet to come."""
    assert gc_advice.predict(snapshot(process(**changed)), version=V311) is None


def test_little_is_nothing() -> None:
    """Streams lost less than a thousandth of the time, or less than the policy might cost."""
    assert gc_advice.predict(snapshot(delay=0.09), version=V311) is None
    assert gc_advice.predict(snapshot(delay=0.11, overlap=8.4), version=V311) is None
    empty = SimpleNamespace(seconds=0.0, processes=[], delay_by_source={}, overlap_by_source={})
    assert gc_advice.predict(empty, version=V311) is None


def test_a_freeze_is_advised_where_slices_cannot_be_had() -> None:
    """It saves of the full collections only, and how much is not certain; over a freeze there is nothing then."""
    for version in (None, V314, (3, 15, 2)):
        saving = gc_advice.predict(snapshot(), policy="observe", version=version)
        assert saving is not None and saving.policy == "freeze"
        assert saving.high == pytest.approx(7.9) and 0 <= saving.low < saving.high
        frozen = snapshot(process(policy=policy(kind="freeze", freezes=1)))
        assert gc_advice.predict(frozen, version=version) is None


def test_what_remains_after_a_freeze_can_be_saved_too() -> None:
    """With a heap whose full collection takes this."""
    frozen = process(policy=policy(kind="freeze", freezes=2, unfrozen=90_000), paused=causes(gc0=0.05, gc2=0.09))
    saving = gc_advice.predict(snapshot(frozen, overlap=0.14 * 8), version=V311)
    assert saving is not None and saving.instead == "freeze" and saving.policy == "idle"


def test_the_role_that_cost_most_is_meant() -> None:
    """And processes without a published policy have that of the context."""
    snap = snapshot(process("api"), process("engine", policy=policy(kind="unknown")), role="engine")
    assert gc_advice.predict(snap, version=V311) is None
    saving = gc_advice.predict(snap, policy="observe", version=V311)
    assert saving is not None and saving.role == "engine"


def advised(of: Any, name: str) -> list[Any]:
    """What one of the rules' questions finds in a group with this process."""
    found: list[Any] = getattr(gc_advice, name)(snapshot(process(), process(policy=of, name="api-1")))
    return found


def test_what_is_wrong_is_found_by_process() -> None:
    """Interference, a fall back, memory_limits, and slices without a moment; of others nothing."""
    interference = policy(interference={**dict.fromkeys(INTERFERENCES, 0), "disable": 2}, collections={"external": 12})
    ((name, _, sentences),) = advised(interference, "interfered")
    assert name == "api-1" and len(sentences) == 1
    assert advised(policy(mode="full collections", why="proof"), "fallen_back") == [("api-1", "proof")]
    assert advised(policy(memory_limits={"rss": 3, "objects": 0}), "at_memory_limit") == [("api-1", {"rss": 3})]
    assert advised(policy(memory_limits={"rss": 1, "objects": 1}), "at_memory_limit") == []
    assert advised(policy(slices={"idle": 50, "overdue": 150}), "without_idle_slots") == [("api-1", 0.75)]
    assert advised(policy(slices={"idle": 150, "overdue": 50}), "without_idle_slots") == []
    assert advised(policy(collections={"external": 20}), "interfered") == []


def test_a_saving_is_frozen() -> None:
    """And JSON-able by its fields."""
    saving = gc_advice.predict(snapshot(), version=V311)
    assert saving is not None and set(dataclasses.asdict(saving)) >= {"policy", "low", "high", "work"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        saving.low = 1.0  # type: ignore[misc]


def test_a_look_costs_what_was_measured() -> None:
    """Where slices were made, by whatever policy; and what an object is charged is the slicer's own price."""
    measured = process(policy=policy(cost=10e-9))
    saving = gc_advice.predict(snapshot(measured), thresholds=(700, 10, 10), version=V311)
    assert saving is not None and saving.work == pytest.approx(1005 * 50e-6 + 30 * 1005 * 700 * 10e-9)
    pace = (CSRC / "include" / "tailwatch" / "gc" / "slice_pacer.h").read_text()
    assert f"#define TW_PACE_PER_OBJECT {gc_advice.LOOKS_PER_OBJECT}\n" in pace
    first = f"#define COST_AT_FIRST ({round(gc_advice.LOOK_SECONDS * 1e9)} * PER)"
    assert first in (CSRC / "gc" / "slice_pacer.c").read_text()
