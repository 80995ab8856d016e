"""The demo's load: seeded Poisson arrivals whose rate ramps up, holds and drains, about every ten seconds."""

from __future__ import annotations

import json
import random
from array import array
from itertools import pairwise

from tailwatch.loadtest.arrivals import Arrivals
from tailwatch.loadtest.interarrival import poisson
from tailwatch.loadtest.lengths import Lengths
from tailwatch.loadtest.profile import Piece, Profile
from tailwatch.loadtest.schedule import Planned, Schedule

PERIOD = 10.0  # seconds, about
# Share of the period, and the rate there over its mean, about: a ramp, a plateau, a drain.
KNOTS = ((0.0, 0.5), (0.3, 1.3), (0.8, 1.3), (0.85, 0.2), (0.95, 0.2), (1.0, 0.5))
ROUND = Profile([Piece(end - start, first, last) for (start, first), (end, last) in pairwise(KNOTS)])
ANSWERS = Lengths.parse("lognormal:35,0.55")
FEWEST_TOKENS, MOST_TOKENS = 8, 128
SYSTEM_PROMPTS, SYSTEM_WORDS = 12, 60
WORDS = (
    "the", "tail", "of", "a", "token", "is", "late", "when", "heap", "old", "and", "queue", "long", "so", "look", "at",
)  # fmt: skip


def open_loop(rate: float, seconds: float, seed: int) -> Schedule:
    """Arrivals at `rate` per second on average over `seconds`, which are whole periods. Equal arguments, equal
    schedule."""
    period = seconds / max(1, round(seconds / PERIOD))
    arrivals = Arrivals("ramps and drains", poisson(), lambda rate, _: _rounds(rate, period))
    times, seconds, law = arrivals.draw(rate, duration=seconds, seed=seed)
    unused = array("I", [0]) * len(times)  # the length of a prompt is that of its text
    return Schedule(times, unused, _answers(len(times), seed), duration=seconds, law=law, seed=seed)


def closed_loop(requests: int, seed: int) -> Schedule:
    """Requests without times of their own, for a closed loop."""
    return Schedule.closed(array("I", [0]) * requests, _answers(requests, seed), seed=seed)


def request(planned: Planned) -> bytes:
    """A completion or a chat, whose prompt begins with one of a few system prompts."""
    rng = random.Random(f"{planned.seed} {planned.index}")
    chat, system = rng.random() < 0.5, random.Random(rng.randrange(SYSTEM_PROMPTS))
    begin = " ".join(system.choices(WORDS, k=SYSTEM_WORDS))
    words = " ".join(rng.choices(WORDS, k=rng.randint(20, 160)))
    if chat:
        messages = [{"role": "system", "content": begin}, {"role": "user", "content": words}]
        return post("/v1/chat/completions", planned, messages=messages)
    return post("/v1/completions", planned, prompt=f"{begin} {words}")


def post(path: str, planned: Planned, **prompt: object) -> bytes:
    """The bytes of a streaming request."""
    body = {"model": "demo", "max_tokens": planned.output_tokens or 1, "stream": True, **prompt}
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1", "host: demo", "content-type: application/json", f"content-length: {len(data)}")
    return "\r\n".join((*head, "", "")).encode() + data


def _answers(count: int, seed: int) -> array[int]:
    drawn = ANSWERS.column(count, f"answers {seed}")
    return array("I", (min(MOST_TOKENS, max(FEWEST_TOKENS, tokens)) for tokens in drawn))


def _rounds(rate: float, period: float) -> Profile:
    """One period after the other, of this rate on average."""
    scale = rate / ROUND.mean
    pieces = [Piece(piece.seconds * period, piece.first * scale, piece.last * scale) for piece in ROUND.pieces]
    return Profile(pieces, again=True)
