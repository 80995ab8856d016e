"""Which servers planted_causes.py runs, in which modes, and which plants each has."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

STOP_SECONDS = 0.4
SMALL = "a small KV cache"
ENGINES = "two engines"
ASYNC = "async scheduling"
RANKS = "two ranks"
HOST = "the host"


@dataclass(frozen=True)
class Plant:
    """One way to be late: in which process (of several, by a part of its title), what is ordered there, and the causes
    and the function to be named."""

    role: str
    order: tuple[str, float | str]
    causes: tuple[str, ...]
    function: str = ""
    title: str = ""


def _collected(role: str) -> dict[str, Plant]:
    return {f"{role}: a collection": Plant(role, ("collect", 2), ("gc2",))}


def _stopped(role: str) -> dict[str, Plant]:
    return {f"{role}: SIGSTOP": Plant(role, ("stop", STOP_SECONDS), ("stopped",))}


def _hogged(role: str) -> dict[str, Plant]:
    return {f"{role}: a thread with the GIL": Plant(role, ("stall", "gil"), ("gil",), "hold_the_lock")}


def _slow(role: str, method: str, *causes: str, process: str = "") -> dict[str, Plant]:
    """On the event loop, which is read, its name is known. process: the role of the process, where another is meant."""
    title = f"{role}: slow {method.strip('_')}()"
    return {title: Plant(process or role, ("sleep", method), causes, "call" if role == "api" else "")}


API = {
    "api: time.sleep()": Plant("api", ("stall", "sleep"), ("sleep",), "plant_sleep"),
    "api: Python": Plant("api", ("stall", "python"), ("callback",), "plant_python"),
    "api: a regular expression": Plant("api", ("stall", "regex"), ("callback",), "plant_regex"),
    "api: fsync()": Plant("api", ("stall", "fsync"), ("io", "callback"), "plant_fsync"),
    "api: a lock": Plant("api", ("stall", "lock"), ("lock", "gil"), "plant_lock"),
    "api: an empty pipe": Plant("api", ("stall", "pipe"), ("io",), "plant_pipe"),
    "api: new memory": Plant("api", ("stall", "faults"), ("memory", "callback"), "plant_faults"),
    **_hogged("api"),
    **_collected("api"),
    **_stopped("api"),
}
LOCKED = {  # where the engine is a thread of that process, it waits for the lock that the loop holds meanwhile
    title: replace(plant, causes=(*plant.causes, "gil")) if "callback" in plant.causes else plant
    for title, plant in API.items()
}
IN_RANKS = {  # of two workers
    "rank 0: slow execute_model()": Plant("worker", ("sleep", "execute_model"), ("rank",), "rank 0", "_TP0"),
    "rank 1: slow execute_model()": Plant("worker", ("sleep", "execute_model"), ("rank",), "rank 1", "_TP1"),
    "rank 1: a collection": Plant("worker", ("collect", 2), ("gc2",), title="_TP1"),
    "rank 1: SIGSTOP": Plant("worker", ("stop", STOP_SECONDS), ("stopped",), title="_TP1"),
}
ON_HOST = {  # what the host does, or a client
    "api: 400,000 dicts freed": Plant("api", ("stall", "dealloc"), ("callback",), "plant_dealloc"),
    "all processes on one CPU": Plant("", ("one_cpu", 1.0), ("cpu",)),
    "a quota of CPU time": Plant("", ("quota", 1.0), ("throttled",)),
    "a client that stops reading": Plant("", ("client", 4.0), ("client",)),
}
ENGINE = {**_hogged("engine"), **_collected("engine"), **_stopped("engine")}  # that has a process of its own


@dataclass(frozen=True)
class Kind:
    """A server.

    Attributes:
        base: which of targets.py.
        flags: what its command line gets beside that, in all modes.
        modes: what it gets in each.
        plants, pairs: of a pair, the second begins before the first has ended, and ends after it: of the same tokens,
            each has a part.
        tokens: of each stream.
        extra: what its requests need, beside what targets.py has; crowded: and where the KV cache is small.
    """

    base: str
    flags: str
    modes: dict[str, str]
    plants: dict[str, Plant]
    pairs: tuple[tuple[str, str], ...]
    tokens: int
    extra: dict[str, Any] = field(default_factory=dict)
    crowded: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "vllm": Kind(
        "vllm",
        "--max-num-batched-tokens 1024 --max-model-len 4096",
        {
            "scheduling in turn": "--no-async-scheduling",
            ASYNC: "--async-scheduling",
            "whole prefills": "--no-enable-chunked-prefill --max-num-batched-tokens 4096",
            "outputs of four steps": "--stream-interval 4",
            "two API processes": "--api-server-count 2",
            SMALL: "--num-gpu-blocks-override 32 --max-model-len 3328",
            ENGINES: "--data-parallel-size 2 --api-server-count 1",
            RANKS: "--tensor-parallel-size 2",
            HOST: "",
        },
        {
            **API,
            **_slow("api", "process_outputs", "output", "sleep"),
            **_slow("engine", "schedule", "engine_host"),
            **ENGINE,
            **_slow("worker", "execute_model", "device"),
            **_collected("worker"),
            **_stopped("worker"),
        },
        (
            ("engine: slow schedule()", "worker: slow execute_model()"),
            ("engine: slow schedule()", "api: slow process_outputs()"),
            ("worker: slow execute_model()", "api: slow process_outputs()"),
            ("engine: slow schedule()", "api: SIGSTOP"),
        ),
        300,
    ),
    "sglang": Kind(
        "sglang, overlapping",
        "",
        {
            "one batch after the other": "--disable-overlap-schedule",
            "overlapping": "",
            SMALL: "--disable-overlap-schedule --max-total-tokens 4000 --schedule-conservativeness 0.1",
        },
        {
            **API,
            **_slow("api", "_handle_batch_output", "sleep"),
            **_slow("engine", "get_next_batch_to_run", "engine_host"),
            **_slow("engine", "forward_batch_generation", "device"),
            **ENGINE,
            **_slow("detokenizer", "handle_batch_token_id_out", "transport"),
            **_collected("detokenizer"),
            **_stopped("detokenizer"),
        },
        (
            ("engine: slow get_next_batch_to_run()", "engine: slow forward_batch_generation()"),
            ("engine: slow get_next_batch_to_run()", "api: slow handle_batch_output()"),
            ("engine: slow get_next_batch_to_run()", "detokenizer: slow handle_batch_token_id_out()"),
            ("detokenizer: slow handle_batch_token_id_out()", "api: slow handle_batch_output()"),
            ("engine: slow forward_batch_generation()", "api: SIGSTOP"),
        ),
        450,
        # with ignore_eos no more are taken than fit
        crowded={"ignore_eos": False, "logit_bias": {"2": -100}},
    ),
    "transformers": Kind(  # its engine is a thread of the API process
        "transformers, continuous batching",
        "--cb-max-batch-tokens 256",  # what a step costs on a CPU grows with it and with the cache
        {"continuous batching": "--cb-num-blocks 112 --cb-block-size 64"},  # a small one: batching_causes.py
        {
            **LOCKED,
            **_slow("api", "put", "sleep"),
            **_slow("engine", "schedule_batch", "engine_host", process="api"),
            **_slow("engine", "_generation_step", "device", process="api"),
            **_slow("engine", "deliver_batch", "transport", process="api"),
        },
        (
            ("engine: slow schedule_batch()", "engine: slow generation_step()"),
            ("engine: slow schedule_batch()", "api: slow put()"),
            ("engine: slow generation_step()", "api: slow put()"),
            ("engine: slow schedule_batch()", "api: SIGSTOP"),
        ),
        450,
        {"generation_config": json.dumps({"eos_token_id": -1, "do_sample": False})},
    ),
}
