"""What a run of planted.py shows of each plant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tailwatch.demo.plants import PLANTS

CLEAR_NS = 5_000_000  # so late is a token whose causes are judged: no scheduler's slice of the machine's other work
OWN_SHARE = 0.5  # of the lateness: less of a plant does not make it the token's


class Verdict(NamedTuple):
    """Of one plant: late tokens; shares of them with its cause first (run-queue waits apart) and its function named;
    share of their lateness that is explained, waits for events apart; charged to it, and its own run-queue waits, over
    what its log has."""

    tokens: int
    first: float
    named: float
    explained: float
    charged: float


def of_plant(late: Sequence[Mapping[str, Any]], plant: str) -> list[Mapping[str, Any]]:
    """The late tokens that it, and no other plant, explains."""
    return [
        each
        for each in late
        if each["late"] >= CLEAR_NS
        and each["truth"].get(plant, 0) >= OWN_SHARE * each["late"]
        and set(each["truth"]) == {plant}
    ]


def first_cause(token: Mapping[str, Any]) -> str:
    """The largest cause, waits for a CPU apart: what other work the machine does is none of ours."""
    sums: dict[str, int] = {}
    for cause, ns, *_ in token["parts"]:
        sums[cause] = sums.get(cause, 0) + ns
    sums.pop("cpu", None)
    return max(sums, key=lambda cause: sums[cause], default="")


def charged(token: Mapping[str, Any], causes: Sequence[str]) -> int:
    """Nanoseconds of some causes."""
    return sum(ns for cause, ns, *_ in token["parts"] if cause in causes)


def judge(late: Sequence[Mapping[str, Any]], plant: str) -> Verdict:
    """All late tokens of a plant."""
    tokens = of_plant(late, plant)
    _, function, causes, _ = PLANTS[plant]
    n, whole = max(len(tokens), 1), max(sum(each["late"] for each in tokens), 1)
    truth = max(sum(each["truth"][plant] for each in tokens), 1)
    own = (*causes, "cpu")
    return Verdict(
        tokens=len(tokens),
        first=sum(first_cause(each) in causes for each in tokens) / n,
        named=sum(any(function in name or function in holder for *_, name, holder in each["parts"]) for each in tokens)
        / n,
        explained=1 - sum(charged(each, ("unexplained",)) + each["idle"] for each in tokens) / whole,
        charged=sum(charged(each, own) for each in tokens) / truth,
    )
