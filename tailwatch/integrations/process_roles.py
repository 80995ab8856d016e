"""What a process is in its server, from the names that servers give their processes.

vLLM and SGLang write theirs over the command line (setproctitle), some time after the process began. Earlier, a
process that multiprocessing started has a name, and the function it runs.
"""

from __future__ import annotations

import re

from tailwatch.platform import current_process, parent_process

_BY_TITLE = (
    (r"VLLM::EngineCore", "engine"),
    (r"VLLM::Worker", "worker"),
    (r"VLLM::APIServer", "api"),
    (r"VLLM::\w*Coordinator", "coordinator"),
    (r"sglang::\w*scheduler", "engine"),
    (r"sglang::detokenizer", "detokenizer"),
    (r"sglang::tokenizer_worker", "api"),
    (r"sglang::data_parallel_controller", "controller"),
    (r"ray::ProxyActor", "api"),
    (r"ray::", "worker"),
)
_BY_NAME = (
    (r"EngineCore", "engine"),
    (r"VllmWorker", "worker"),
    (r"ApiServer", "api"),
    (r"\w*Coordinator$", "coordinator"),
    (r"inference-?_?worker", "engine"),
    # What an unknown server may call them; also with something after it: engine-1.
    *((rf"(?i:{name})(?![a-zA-Z])", name) for name in ("engine", "scheduler", "worker", "detokenizer")),
)
_BY_TARGET = (
    (r"vllm\..*\brun_engine_core$", "engine"),
    (r"vllm\..*\bworker_main$", "worker"),
    (r"sglang\..*\brun_scheduler_process$", "engine"),
    (r"sglang\..*\brun_detokenizer_process$", "detokenizer"),
    (r"sglang\..*\brun_data_parallel_controller_process$", "controller"),
    (r"lmdeploy\..*\bmp_engine\b", "engine"),
    (r"lmdeploy\..*\bexecutor\b", "worker"),
    (r"litserve\..*\binference_worker$", "engine"),
    (r"multiprocessing\.managers\.", "manager"),  # keeps what processes share; LitServe has one
)
# Also with something after it: engine-1, worker_tp0. "worker": a process without an app and without a name.
_DELAYS_STREAMS = re.compile(r"(engine|worker|detokenizer|scheduler)(?![a-z])", re.IGNORECASE)


def delays_streams(role: str) -> bool:
    """Whether tokens pass through processes of this role, so that streams of other processes wait while one of them
    stands still. Launchers, coordinators and unknown roles delay no stream."""
    return _DELAYS_STREAMS.match(role) is not None


def role_of_process() -> str | None:
    """The role of this process, None where nothing shows it. Takes some 20 µs; never raises."""
    role = _first(_BY_TITLE, _title())
    if role is None and parent_process() is not None:
        process = current_process()
        role = _first(_BY_NAME, process.name) or _first(_BY_TARGET, _target(process))
    return role


def names_of_process() -> tuple[str, ...]:
    """What this process is called: its title, and its name where multiprocessing started it."""
    return (_title(), current_process().name) if parent_process() is not None else (_title(),)


def _first(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((role for pattern, role in table if re.match(pattern, text)), None)


def _title() -> str:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read(256).decode(errors="replace")
    except OSError:
        return ""


def _target(process: object) -> str:
    target = getattr(process, "_target", None)
    target = getattr(target, "func", target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
