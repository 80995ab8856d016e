"""Stalls planted in an event loop are charged to what was planted, and to its function."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailwatch.demo.plants import PLANTS

from ..support.once import once
from ..support.process import clean_environment
from .judging import judge, of_plant

SCRIPT = Path(__file__).with_name("planted.py")
HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
LOOPS = [
    "asyncio",
    pytest.param("uvloop", marks=pytest.mark.skipif(not HAS_UVLOOP, reason="pip install uvloop")),
]
SHARP = ("sleep", "python", "pipe", "lock", "gil", "stop")
EXACT = ("sleep", "pipe", "lock", "stop")  # asleep: what other work the machine does adds nothing to them


@pytest.fixture
def outcome(run_directory: Path) -> Callable[..., Any]:
    """A run of planted.py, one for all tests that ask for the same."""

    def of(loop: str, between: float, rounds: int, plants: tuple[str, ...]) -> Any:
        arguments = [loop, str(between), str(rounds), *plants]
        return once(run_directory, "planted-" + "-".join(arguments), lambda: planted(*arguments))

    return of


def planted(*arguments: str) -> Any:
    """What planted.py prints."""
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.alone
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("plant", SHARP)
def test_a_planted_stall_is_named(outcome: Callable[..., Any], loop: str, plant: str) -> None:
    """Its cause comes first, then its function; little is left unexplained. In two of three: a watchdog that gets no
    processor during a stall has no sample of it, and what it would have named is unexplained."""
    found = outcome(loop, 0.1, 3, SHARP)
    verdict = judge(found["late"], plant)
    assert verdict.tokens > 0
    assert verdict.first > 0.6, of_plant(found["late"], plant)
    assert verdict.named > 0.6, of_plant(found["late"], plant)
    assert verdict.explained > 0.6, of_plant(found["late"], plant)
    if plant in EXACT and verdict.explained > 0.9:
        assert verdict.charged == pytest.approx(1, abs=0.1), of_plant(found["late"], plant)


@pytest.mark.alone
@pytest.mark.parametrize("loop", LOOPS)
def test_the_parts_sum_to_the_lateness(outcome: Callable[..., Any], loop: str) -> None:
    """To the nanosecond, of every late token; and the loop is given back."""
    found = outcome(loop, 0.1, 3, SHARP)
    assert found["undone"] == []
    assert found["late"]
    for token in found["late"]:
        assert token["idle"] + sum(ns for _, ns, *_ in token["parts"]) == token["late"]


@pytest.mark.alone
def test_what_the_handles_clock_gives(outcome: Callable[..., Any]) -> None:
    """On asyncio: callbacks too short for samples are named."""
    found = outcome("asyncio", 0.1, 10, ("short", "own"))
    verdict = judge(found["late"], "short")
    assert verdict.tokens > 0
    assert min(verdict.first, verdict.named, verdict.explained) > 0.6, of_plant(found["late"], "short")


@pytest.mark.alone
@pytest.mark.parametrize("loop", LOOPS)
def test_what_runs_before_the_stamp_is_the_requests_own(outcome: Callable[..., Any], loop: str) -> None:
    """By the handles' clock on asyncio, by the context of the samples on uvloop."""
    found = outcome(loop, 0.1, 10, ("short", "own"))
    verdict = judge(found["late"], "own")
    assert verdict.tokens > 0
    assert min(verdict.first, verdict.named, verdict.explained) > 0.6, of_plant(found["late"], "own")


PAIRS = ("sleep+python", "pipe+gil", "lock+collect", "fsync+regex", "dealloc+faults", "python+own")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant != "short"])
def test_every_stall_is_named(outcome: Callable[..., Any], loop: str, plant: str) -> None:
    """Each plant alone, ten times: two of them may lack a sample, which a share of 95 % makes of ten once in a hundred
    runs."""
    found = outcome(loop, 0.15, 10, (plant,))
    verdict = judge(found["late"], plant)
    assert verdict.tokens >= 10
    assert min(verdict.first, verdict.named, verdict.explained) >= 0.8, of_plant(found["late"], plant)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("pair", PAIRS)
def test_two_stalls_at_once_are_both_named(outcome: Callable[..., Any], loop: str, pair: str) -> None:
    """In most late tokens that both delayed the largest two causes, waits for a CPU apart, are theirs."""
    found = outcome(loop, 0.15, 3, (pair,))
    both = [each for each in found["late"] if len(each["truth"]) == 2 and min(each["truth"].values()) > 5_000_000]
    right = 0
    for token in both:
        causes = {cause for cause, ns, *_ in token["parts"] if ns > 1_000_000}
        right += all(causes & set(PLANTS[plant].causes) for plant in token["truth"])
    assert both == [] or right >= 0.75 * len(both), both
