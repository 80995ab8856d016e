"""Findings by cause: ranked by the lateness they explain, each with what lessens it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tailwatch.diagnose import rules_delay
from tailwatch.snapshots.model import Cause


def seen(delay: dict[str, float], *causes: Cause) -> Any:
    """A snapshot whose longest slow gap has the first cause, and others a cause each."""
    longest, *others = [SimpleNamespace(causes=(cause,)) for cause in causes] or [SimpleNamespace(causes=())]
    return SimpleNamespace(delay=delay, slowest=[longest], recent=others)


def test_a_cause_is_a_finding_with_its_share_its_worst_and_a_remedy() -> None:
    """What explains less than a tenth, the request's own prefill and what is unexplained are none."""
    delay = {"callback": 3.8, "throttled": 2.2, "gil": 0.3, "own_prefill": 50.0, "unexplained": 3.7}
    encode = Cause(0.212, "callback", "sampled", "api", "encode  serving_chat.py:312")
    collected = Cause(0.4, "gc2", "measured", "api")
    short = Cause(0.001, "callback", "measured", "api", "_run  tasks.py:3")
    first, second = rules_delay.causes(seen(delay, collected, short, encode))

    assert (first.title, first.lateness) == (
        "38% of the delay of tokens: the event loop ran other code: encode  serving_chat.py:312",
        3.8,
    )
    assert "the longest 212 ms in api" in first.detail and "asyncio.to_thread" in first.advice
    assert (second.title, second.lateness) == ("22% of the delay of tokens: the cgroup's quota held the process", 2.2)
    assert "cpu.max" in second.advice


def test_a_healthy_server_has_none() -> None:
    """Less than a tenth of a second of stream time is nothing to act on."""
    assert rules_delay.causes(seen({"callback": 0.09, "unexplained": 0.0})) == []
