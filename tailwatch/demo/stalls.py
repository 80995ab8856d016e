"""`tailwatch demo --stalls`: stalls planted in the demo's server, and what `tailwatch why` names for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailwatch.demo import client, machine, traffic
from tailwatch.demo.pipe import Child
from tailwatch.demo.planting import AFTER_SECONDS, BEFORE_SECONDS, REST
from tailwatch.demo.plants import LENGTH, PLANTS
from tailwatch.loadtest.engine import Job
from tailwatch.loadtest.report.progress import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailwatch.demo.pipe import Line
    from tailwatch.options.slo import SLO

SERVER = "tailwatch.demo.server"
NAMES = tuple(name for name in PLANTS if name not in ("own", "short"))
ROUNDS = 3
OBJECTS = 50_000  # collections of the server's own heap are short: the planted ones are looked for
WORKERS = 4
REQUESTS = 20_000  # more than any server finishes in that time
SHOWN = 3  # causes
LEAST_SHARE = 0.01


def measure(slo: SLO, seed: int, names: Sequence[str] = NAMES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Plants them under load. Seconds; of each plant its tokens, the sums of their causes, and the share explained."""
    steps = Steps()
    with Child(SERVER) as server:
        steps.show("stalls: starting a server")
        ready = server.ask({"seed": seed, "objects": OBJECTS, "arm": "observe", "slo": slo.text})
        server.ask({"do": "plant", "plants": list(names), "rounds": rounds})
        steps.show(f"stalls: planting {len(names)} kinds, {rounds} of each")
        seconds = 2 + rounds * len(names) * (BEFORE_SECONDS + LENGTH + AFTER_SECONDS + 0.1)
        schedule = traffic.closed_loop(REQUESTS, seed)
        client.measure(Job(schedule, traffic.request, workers=WORKERS, seconds=seconds), server, ready["port"])
        found = server.ask({"do": "planted"}, patience=600)["plants"]
    plants = {name: summarize(name, line) for name, line in found.items()}
    return {"version": 1, "seed": seed, "machine": machine.describe(), "rounds": rounds, "plants": plants}


def summarize(name: str, line: Line) -> dict[str, Any]:
    """Of one plant. named: its cause is the largest, waits for a CPU apart, and its function is named."""
    causes = _added_up([each for token in line["tokens"] for each in token["causes"]])
    late = sum(token["late"] for token in line["tokens"])
    rest = sum(each["seconds"] for each in causes if each["cause"] in REST)
    return {
        "title": PLANTS[name].title,
        "seconds": line["seconds"],
        "tokens": len(line["tokens"]),
        "late": late,
        "explained": 1 - rest / late if late else None,
        "named": _named(name, causes),
        "causes": causes,
    }


def _added_up(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By cause and function, the largest first: a pipe has another number each time, and a loop many lines."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for each in sorted(parts, key=lambda part: -float(part["seconds"])):
        function, _, place = each["what"].partition("  ")
        kept = sums.setdefault((each["cause"], function if place else ""), each | {"seconds": 0.0})
        kept["seconds"] += each["seconds"]
    return sorted(sums.values(), key=lambda part: -float(part["seconds"]))


def _named(name: str, causes: list[dict[str, Any]]) -> bool:
    by_cause: dict[str, float] = {}
    for each in causes:
        by_cause[each["cause"]] = by_cause.get(each["cause"], 0.0) + each["seconds"]
    by_cause.pop("cpu", None)
    first = max(by_cause, key=lambda cause: by_cause[cause], default="")
    _, function, own, _ = PLANTS[name]
    return first in own and any(function in str(each["what"]) for each in causes)


def text_of(report: dict[str, Any]) -> str:
    """A paragraph for each plant: what it was, and the causes of the tokens that it delayed."""
    machine, rounds = report["machine"], report["rounds"]
    where = f"{machine['cpus']} CPUs, load average {machine['load_average'][0]:.1f}, Python {machine['python']}"
    lines = [f"{where}. Each was planted {rounds} times in the server.", ""]
    for plant in report["plants"].values():
        lines += [*_paragraph(plant, rounds), ""]
    named = sum(plant["named"] for plant in report["plants"].values())
    lines.append(f"{named} of {len(report['plants'])} named first, with their function where they have one.")
    return "\n".join(lines)


def _paragraph(plant: dict[str, Any], rounds: int) -> list[str]:
    planted = f"planted: {plant['title']}, {plant['seconds'] / rounds * 1e3:.0f} ms"
    if not plant["tokens"]:
        return [planted, "  no token was late by it"]
    each_ms = plant["late"] / plant["tokens"] * 1e3
    late = f"{plant['tokens']} tokens late, {each_ms:.0f} ms each; {plant['explained']:.0%} explained"
    shown = [each for each in plant["causes"] if each["seconds"] >= LEAST_SHARE * plant["late"]][:SHOWN]
    return [f"{planted}; {late}", *(_row(each, plant["late"]) for each in shown)]


def _row(each: dict[str, Any], late: float) -> str:
    share = each["seconds"] / late
    return f"  {share:>4.0%}  {each['cause']:<10} {each['what']:<70} {each['certainty']}".rstrip()
