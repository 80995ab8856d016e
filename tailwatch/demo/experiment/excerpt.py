"""What is sent: an excerpt of generated conversation traffic, cut to the model's lengths, at a scale."""

from __future__ import annotations

import random
import string

from tailwatch.demo.traffic import post
from tailwatch.loadtest import conversation
from tailwatch.loadtest.schedule import Planned, Schedule
from tailwatch.loadtest.traces import Trace

LONGEST_PROMPT, LONGEST_ANSWER = 512, 128  # tokens: what one run of the demo's model gets through often enough
_LETTERS = string.ascii_lowercase  # each of them is a token of the demo's vocabulary


def replay(seconds: float, rate: float, seed: int) -> Schedule:
    """So many seconds at `rate` requests per second on average over the law; the excerpt's own rate differs, as the
    trace's does from minute to minute. Scale, rate and law stand in the schedule's law."""
    scale = conversation.RATE / rate
    trace = cut(conversation.generate(1.1 * seconds / scale + 10, seed=seed))  # a replay begins at its first arrival
    return trace.replay(scale=scale, duration=seconds, seed=seed)


def closed(requests: int, seed: int) -> Schedule:
    """Requests of the same lengths, for a closed loop."""
    trace = cut(conversation.generate(2 * requests / conversation.RATE + 60, seed=seed))
    return Schedule.closed(trace.prompt_tokens[:requests], trace.output_tokens[:requests], seed=seed)


def cut(trace: Trace) -> Trace:
    """The same with prompts and answers that are no longer than the model takes."""
    lengths = zip(trace.times_ns, trace.prompt_tokens, trace.output_tokens, strict=True)
    rows = ((at, min(prompt, LONGEST_PROMPT), min(output, LONGEST_ANSWER)) for at, prompt, output in lengths)
    return Trace.of(trace.name, trace.format, rows)


def request(planned: Planned, seed: int) -> bytes:
    """The bytes of one. In the demo's vocabulary a letter without a blank before it is a token; no two prompts are
    alike, so that the server's prefix cache answers none of them."""
    rng = random.Random(f"{seed} {planned.index}")
    return post("/v1/completions", planned, prompt="".join(rng.choices(_LETTERS, k=planned.prompt_tokens or 1)))
