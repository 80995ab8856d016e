"""Runs vLLM, delays tokens on purpose in its engine, its worker and its API process, and compares what the
engine's own records make of each late token with a log of the plants.

    tailwatch run --dir DIR -- VENV/bin/python tests/servers/engine_causes.py --model MODEL [--json FILE] [--preempt]
    … --cuda    on a GPU, with CUDA graphs for steps that decode at most four requests (MODEL: make_model.py --large)

MODEL is make_model.py's; DIR a directory of mode 700. The client is AsyncLLM in this process, without HTTP. Here, and
not by tailwatch, are noted: when each output came, when it was processed, when its message reached the client. What is
proven is the ring of steps, the join and the split (csrc/attribute/engine_split.c).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent / "plant"))
from at_import import AtImport

ORDERS = os.environ.setdefault("ENGINE_CAUSES_ORDERS", tempfile.mkdtemp())
os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", VLLM_WORKER_MULTIPROCESSING_METHOD="spawn",
)  # fmt: skip
PLANTS = {
    "vllm.v1.core.sched.scheduler": ("Scheduler", "schedule"),
    "vllm.v1.worker.worker_base": ("WorkerWrapperBase", "execute_model"),
    "vllm.v1.engine.output_processor": ("OutputProcessor", "process_outputs"),
}
STREAMS, TOKENS, PROMPT = 4, 260, 20
SLEEP = 0.4
SLOW = 0.030  # seconds beyond the typical gap: more than the machine's other work adds
SLOW_CUDA = 0.005
TOKENS_CUDA = 600
COLUMNS = ("transport", "output", "loop")


class Output(NamedTuple):
    """One output of a request in the API process: monotonic ns."""

    key: int
    received: int
    processed: int


class Message(NamedTuple):
    """What reached a client: when, and the outputs that it holds."""

    sent: int
    outputs: list[Output]


OUTPUTS: dict[str, list[Output]] = defaultdict(list)


def planted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Sleeps once, where an order asks for it, before it does what it did; the log has when."""

    def call(*args: Any, **kwargs: Any) -> Any:
        came = time.monotonic_ns()
        try:
            os.rename(f"{ORDERS}/{name}.do", f"{ORDERS}/{name}.doing")
        except OSError:
            pass
        else:
            time.sleep(SLEEP)
            Path(f"{ORDERS}/{name}.log").write_text(json.dumps([came, time.monotonic_ns()]))
        result = original(*args, **kwargs)
        if name == "process_outputs" and args[2] is not None:
            done = time.monotonic_ns()
            for output in args[1]:
                OUTPUTS[output.request_id].append(Output(round(args[2] * 1e9), came, done))
        return result

    return call


def _plant(owner: str, name: str, module: Any) -> None:
    home = getattr(module, owner)
    setattr(home, name, planted(getattr(home, name), name))


# In every process: each imports this file.
sys.meta_path.insert(0, AtImport({module: partial(_plant, *method) for module, method in PLANTS.items()}))


class Client:
    """Requests to one engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._round = 0

    async def streams(self, name: str, count: int, tokens: int) -> None:
        """Further ones of the same length as a round's."""
        await asyncio.gather(*(self.stream(f"{name}{i}-", PROMPT, tokens) for i in range(count)))

    async def stream(self, name: str, prompt: int, tokens: int) -> list[Message]:
        """The messages of one request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked = SamplingParams(max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        ids = {"prompt_token_ids": [5 + (i * 7 + self._round) % 200 for i in range(prompt)]}
        messages, taken = [], 0
        async for _ in self._engine.generate(ids, asked, name):
            sent = time.monotonic_ns()
            mine = next(outputs for known, outputs in OUTPUTS.items() if known.startswith(name))
            messages.append(Message(sent, mine[taken:]))
            taken = len(mine)
        return messages

    async def round(self, act: Callable[[], Any], tokens: int = TOKENS) -> dict[str, list[Message]]:
        """Streams that decode, and what act does beside them when each has had a third of its tokens: a request of
        its own, or nothing that takes time."""
        self._round += 1
        names = [f"round{self._round}-{i}-" for i in range(STREAMS)]
        tasks = {name: asyncio.create_task(self.stream(name, PROMPT, tokens)) for name in names}
        while any(sum(len(v) for k, v in OUTPUTS.items() if k.startswith(name)) < tokens // 3 for name in names):
            await asyncio.sleep(0.01)
        other = act()
        results = {name: await task for name, task in tasks.items()}
        if asyncio.iscoroutine(other):
            await other
        elif isinstance(other, asyncio.Task):
            results["other"] = await other
        return results


def order(name: str) -> Callable[[], None]:
    """Asks for one sleep in that method."""
    return lambda: Path(f"{ORDERS}/{name}.do").write_text("")


class Ring:
    """The engine's ring of steps, as another process of the group maps it."""

    def __init__(self) -> None:
        from tailwatch._cold import ffi, lib
        from tailwatch.runtime.install import current

        self._watch: Any = current()
        self._ffi, self._lib = ffi, lib
        self._watch.core.renew()
        segments = [ffi.cast("const tw_segment *", address) for address in self._watch.core.members()]
        [self._segment] = [segment for segment in segments if segment.step_ring.head]
        self._ring = ffi.addressof(self._segment, "step_ring")

    def engine(self) -> dict[str, Any]:
        """What its steps were, and what they cost by the model learned on line, in ms."""
        from tailwatch.snapshots import take_directory

        [engine] = [each for each in take_directory(os.environ["TAILWATCH_DIR"]).engines if each.cost.decode_step]
        cost = {name: None if value is None else round(value * 1e3, 6) for name, value in asdict(engine.cost).items()}
        steps = {work: each.count for work, each in engine.steps.items()}
        parts = {name: round(seconds, 3) for name, seconds in engine.parts.items()}
        return {"cost_ms": cost, "steps": steps, "graphs": engine.graphs, "parts_s": parts, "tokens": engine.tokens}

    def split(self, k0: int, k1: int, request: str, typical: int) -> dict[str, float] | None:
        """Milliseconds by cause of (k0, k1] beyond the typical length; None: not joined. The engine's own pauses are
        accounted for before, as where tailwatch charges a token."""
        ffi, lib = self._ffi, self._lib
        parts, name = ffi.new("tw_parts *"), ffi.new("char[64]")
        encoded = request.encode()
        number = lib.tw_request_hash(encoded, len(encoded))
        host = ffi.addressof(self._segment, "host")
        paused = min(self._paused(k0, k1), max(0, k1 - k0 - typical))
        if not lib.tw_engine_split(self._ring, k0, k1, number, typical, 0, typical + paused, parts):
            return None
        out: dict[str, float] = defaultdict(float, {"pauses of the engine": paused / 1e6} if paused else {})
        for part in list(parts.part[0 : parts.n]):
            lib.tw_engine_name_copy(self._ring, host, part.name, name, len(name))
            text, cause = ffi.string(name).decode(), ffi.string(lib.tw_delay_cause_name(part.cause)).decode()
            out[f"{cause} {text}".strip()] += part.ns / 1e6
        return dict(out)

    def _paused(self, k0: int, k1: int) -> int:
        """Nanoseconds of pauses in the steps that answered in (k0, k1]."""
        step, paused = self._ffi.new("tw_step_record *"), 0
        for number in range(self._lib.tw_step_find(self._ring, k0 + 1), self._ring.head):
            if not self._lib.tw_step_read(self._ring, number, step) or step.update_ns > k1:
                break
            paused += step.paused * self._lib.TW_OFFSET_UNIT_NS if step.key_ns > k0 else 0
        return paused


def explain(ring: Ring, streams: dict[str, list[Message]], slow: float = SLOW) -> dict[str, Any]:
    """Of all late messages of the streams: milliseconds by cause, and how each sum compares with its excess."""
    late, unjoined, messages, worst_error = [], 0, 0, 0.0
    for name, sent in streams.items():
        request = next(known for known in OUTPUTS if known.startswith(name))
        pairs = [(before, after) for before, after in pairwise(sent) if before.outputs and after.outputs]
        typical = [median(column) for column in zip(*(chain(*pair) for pair in pairs), strict=True)]
        for pair in pairs:
            messages += 1
            links = chain(*pair)
            k0, k1 = pair[0].outputs[-1].key, pair[1].outputs[0].key
            engine = ring.split(k0, k1, request, int(typical[0]))
            if engine is None:
                unjoined += 1
                continue
            excess = sum(links) - sum(typical)
            if excess < slow * 1e9:
                continue
            causes = {**engine, **{c: (links[i + 1] - typical[i + 1]) / 1e6 for i, c in enumerate(COLUMNS)}}
            if k1 - k0 < typical[0]:
                causes["engine below typical"] = (k1 - k0 - typical[0]) / 1e6
            worst_error = max(worst_error, abs(sum(causes.values()) - excess / 1e6))
            late.append((excess / 1e6, causes))
    total: dict[str, float] = defaultdict(float)
    for _, causes in late:
        for cause, ms in causes.items():
            total[cause] += ms
    return {
        "messages": messages,
        "unjoined": unjoined,
        "late": len(late),
        "late_ms": round(sum(excess for excess, _ in late), 1),
        "causes_ms": {
            c: round(ms, 1) for c, ms in sorted(total.items(), key=lambda item: -abs(item[1])) if abs(ms) > 0.5
        },
        "worst_error_of_a_sum_ms": round(worst_error, 6),
    }


def chain(before: Message, after: Message) -> tuple[int, int, int, int]:
    """The four segments of a gap against the token before: they sum to it."""
    was, now = before.outputs[-1], after.outputs[0]
    return (
        now.key - was.key,
        (now.received - now.key) - (was.received - was.key),
        (now.processed - now.received) - (was.processed - was.received),
        (after.sent - now.processed) - (before.sent - was.processed),
    )


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds in one engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    more: dict[str, Any] = {"max_model_len": 4096, "max_num_batched_tokens": 1024, "dtype": "float32"}
    more |= {"num_gpu_blocks_override": 32, "max_model_len": 3328} if options.preempt else {}
    if options.cuda:
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, STREAMS]}
        more = {"max_model_len": 16384, "max_num_batched_tokens": 8192, "dtype": "bfloat16"}
        more |= {"compilation_config": graphs, "cudagraph_metrics": True, "gpu_memory_utilization": 0.4}
    more |= {} if options.cuda else {"enforce_eager": True}
    arguments = AsyncEngineArgs(
        model=options.model, max_num_seqs=16, enable_prefix_caching=False, **more, **options.engine
    )
    engine = AsyncLLM.from_engine_args(arguments)
    client, results = Client(engine), {}
    tokens = TOKENS_CUDA if options.cuda else TOKENS
    short, long = (8000, 15000) if options.cuda else (900, 3000)
    try:
        await client.round(lambda: None, tokens)  # warm
        if options.cuda:
            await client.round(lambda: asyncio.create_task(client.stream("warm8000", 8000, 2)), tokens)
        if options.preempt:
            rounds: dict[str, Any] = {"preempted": lambda: asyncio.create_task(client.stream("victim", 2700, 300))}
        else:
            rounds = {
                "control": lambda: None,
                f"prefill of {short} tokens": lambda: asyncio.create_task(client.stream(f"prompt{short}", short, 2)),
                f"prefill of {long} tokens, in chunks": lambda: asyncio.create_task(
                    client.stream(f"prompt{long}", long, 2)
                ),
                **{f"sleep in {name}": order(name) for _, name in PLANTS.values()},
            }
            if options.cuda:
                rounds["more requests than a graph is for"] = lambda: client.streams("more", 2, tokens // 3)
        for title, act in rounds.items():
            streams = await client.round(act, 400 if options.preempt else tokens)
            other = {"victim": streams.pop("other")} if options.preempt else {}
            streams.pop("other", None)
            results[title] = explain(Ring(), other or streams, SLOW_CUDA if options.cuda else SLOW)
            log = [Path(f"{ORDERS}/{name}.log") for _, name in PLANTS.values() if title.endswith(name)]
            if log:
                began, ended = json.loads(log[0].read_text())
                results[title]["planted_ms_each"] = round((ended - began) / 1e6, 1)
            print(title, json.dumps(results[title]), flush=True)
        results |= {"engine": Ring().engine()} if options.cuda else {}
    finally:
        engine.shutdown()
    return results


def _gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name())


def main() -> None:
    """Prints and keeps the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--engine", type=json.loads, default={}, help="further arguments of the engine, as JSON")
    parser.add_argument("--preempt", action="store_true", help="a KV cache too small, instead of the other rounds")
    options = parser.parse_args()
    results = asyncio.run(run(options))
    engine = {"engine": results.pop("engine")} if options.cuda else {}
    print(json.dumps(engine), flush=True)
    if options.json is not None:
        sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
        from harness import machine
        from vllm import __version__

        kept = json.loads(options.json.read_text())["rounds"] if options.json.exists() else {}
        gpu = {"gpu": _gpu()} if options.cuda else {}
        whole = {"machine": machine() | gpu, "vllm": __version__, "rounds": {**kept, **results}, **engine}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
