"""The demo's load: when its requests are sent, and what they ask for."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tailwatch.demo import traffic


def seconds(rate: float, duration: float, seed: int) -> list[float]:
    """When the requests of a schedule are sent."""
    return [at / 1e9 for at in traffic.open_loop(rate, duration, seed).times_ns]


def test_the_seed_decides_the_schedule() -> None:
    """The same arguments give all arms the same load; another seed gives another one."""
    schedule = traffic.open_loop(40.0, 20.0, 7)

    assert schedule == traffic.open_loop(40.0, 20.0, 7)
    assert schedule != traffic.open_loop(40.0, 20.0, 8)


def test_the_mean_rate_is_the_rate_asked_for() -> None:
    """Over many periods the number of arrivals is rate times length, within five standard deviations."""
    assert abs(len(seconds(50.0, 200.0, 3)) - 10_000) < 5 * 100


def test_arrivals_are_those_of_its_law() -> None:
    """Ordered, inside the window, and Poisson once the ramps are taken out."""
    schedule = traffic.open_loop(60.0, 93.0, 5)

    assert schedule.times_ns[0] >= 0 and schedule.times_ns[-1] <= 93e9
    assert all(a <= b for a, b in pairwise(schedule.times_ns))
    assert schedule.law.p is not None and schedule.law.p > 0.001


def test_the_load_ramps_and_drains() -> None:
    """The plateau of a period has more than four times the arrivals per second of its drain."""
    times = [at % 10.0 for at in seconds(100.0, 200.0, 11)]
    plateau = sum(3.0 <= at < 8.0 for at in times) / 5.0
    drain = sum(8.5 <= at < 9.5 for at in times) / 1.0

    assert plateau > 4 * drain > 0


@pytest.mark.parametrize("duration", [4.0, 6.0, 45.0])
def test_a_window_holds_whole_periods(duration: float) -> None:
    """The last arrivals of any window are those of a drain, not of a plateau cut off."""
    period = duration / max(1, round(duration / traffic.PERIOD))
    times = seconds(2000 / duration, duration, 2)
    last, plateau = duration - 0.15 * period, duration - 0.5 * period

    ending = sum(last <= at for at in times) / (0.15 * period)
    middle = sum(plateau <= at < plateau + 0.25 * period for at in times) / (0.25 * period)
    assert ending < middle / 2


def test_requests_ask_both_routes_for_what_was_planned() -> None:
    """Answers within their bounds; a few system prompts, which a prefix cache finds again; else no two alike."""
    schedule = traffic.closed_loop(500, 1)
    prompts, paths = [], set()
    for planned in schedule:
        head, _, data = traffic.request(planned).partition(b"\r\n\r\n")
        body = json.loads(data)
        assert f"content-length: {len(data)}".encode() in head
        assert body["max_tokens"] == planned.output_tokens and body["stream"]
        messages = body.get("messages")
        prompts.append(body["prompt"] if messages is None else " ".join(m["content"] for m in messages))
        paths.add(head.split()[1])

    assert paths == {b"/v1/completions", b"/v1/chat/completions"}
    begins = {tuple(prompt.split()[: traffic.SYSTEM_WORDS]) for prompt in prompts}
    assert len(begins) == traffic.SYSTEM_PROMPTS and len(set(prompts)) == 500
    assert min(schedule.output_tokens) == traffic.FEWEST_TOKENS and max(schedule.output_tokens) <= traffic.MOST_TOKENS


def test_a_closed_loop_begins_with_answers_of_every_length() -> None:
    """It ends long before its schedule does: the first requests are to be like all of them."""
    answers = traffic.closed_loop(2_000, 1).output_tokens

    assert sum(answers[:200]) / 200 == pytest.approx(sum(answers) / 2_000, rel=0.15)
