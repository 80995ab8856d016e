"""Which of several engines a process works for, from the names that servers and users give their processes.

The ranks of one engine are a unit: all wait while one of them is paused. vLLM and SGLang number the engines behind one
API by their data parallel rank and write it into the process titles. A process whose names hold no rank is assigned to
an engine by the rules of csrc/include/tailwatch/attribute/engine_id.h.
"""

from __future__ import annotations

import re

from tailwatch.integrations.process_roles import names_of_process

# VLLM::EngineCore_DP1, VLLM::Worker_DP1_TP0, EngineCore_DP1 (the name of the process before it has a title),
# sglang::scheduler_DP1_TP0; a role that a user wrote, like worker_dp1.
_RANK = re.compile(r"(?<![a-z])dp_?(\d{1,9})(?![a-z0-9])", re.IGNORECASE)
_GIVEN_BY_A_SERVER = re.compile(r"VLLM::|sglang::|EngineCore")  # other command lines may hold any words
_OLD_VLLM = re.compile(r"VLLM::DPEngineCore_(\d{1,9})")
_RANK_OF_THE_ONLY_ONE = re.compile(r"sglang::\w*scheduler_(?!.*DP)(?:\w*_)?(?:TP|PP)\d")
_NUMBERED = re.compile(r"engine[-_.]?(\d{1,9})", re.IGNORECASE)
_ENGINE = re.compile(r"engine(?![a-z])", re.IGNORECASE)
_DETOKENIZER = re.compile(r"detokenizer(?![a-z])", re.IGNORECASE)


def engine_of_role(role: str) -> str:
    """The engine that a role names: "1" for "engine-1" and "worker_dp1_tp0", "" for "engine" and "worker-1"."""
    found = _NUMBERED.fullmatch(role) or _RANK.search(role)
    return str(int(found[1])) if found else ""


def engine_of_process() -> str:
    """The engine in the names of this process, "" where they have none. Takes some 20 us; never raises."""
    for name in filter(_GIVEN_BY_A_SERVER.match, names_of_process()):
        if found := _RANK.search(name) or _OLD_VLLM.match(name):
            return str(int(found[1]))
        if _RANK_OF_THE_ONLY_ONE.match(name):
            return "0"
    return ""


def is_engine(role: str) -> bool:
    """Whether a process of this role is an engine of its own, unless it is given a name; workers are parts of one."""
    return _ENGINE.match(role) is not None


def is_shared(role: str) -> bool:
    """Whether the tokens of all engines pass through a process of this role, if the server has only one."""
    return _DETOKENIZER.match(role) is not None
