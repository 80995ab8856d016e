"""A decode loop to be looked at with Nsight Systems: which collection left the GPU with nothing to do.

    nsys profile --trace=cuda,nvtx -o report python examples/traces/nsys.py
    nsys export --type sqlite -o report.sqlite report.nsys-rep
    tailwatch nsys report.sqlite

Without a GPU (or torch) it decodes on the CPU: the report then has our ranges and no kernels. Started without nsys it
runs as well, and prints that no tool is attached.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import tailwatch
from tailwatch import nvtx

BATCH, STEPS, COLLECT_EVERY = 4, 60, 20


def decoder() -> Callable[[], None]:
    """One step of a model: on a GPU where there is one, and waited for, as a server does that reads its tokens."""
    try:
        import torch
    except ImportError:
        return lambda: time.sleep(0.002)
    if not torch.cuda.is_available():
        return lambda: time.sleep(0.002)
    weights, state = torch.randn(2048, 2048, device="cuda"), torch.randn(8, 2048, device="cuda")

    def step() -> None:
        (state @ weights).argmax(dim=1).tolist()

    return step


def main() -> None:
    """Decodes, and lets the collector run as it pleases, and now and then when it should not."""
    tailwatch.install(role="engine", gc="observe", nvtx_tokens=True)
    print("an NVTX tool is attached" if nvtx.attached() else "no NVTX tool is attached: start it under nsys profile")
    heap = [[{"block": block} for block in range(1000)] for _ in range(100)]
    step = decoder()
    with tailwatch.stream(model="example") as stream:
        with nvtx.range("prefill", payload=BATCH):
            step()
        for number in range(STEPS):
            with tailwatch.step("decode", batch=BATCH, waiting=BATCH):
                step()
            stream.token()
            if number % COLLECT_EVERY == COLLECT_EVERY - 1:
                gc.collect()
    paused = tailwatch.snapshot().paused
    print(f"{STEPS} steps; paused by full collections for {sum(paused.values()) * 1e3:.1f} ms, {len(heap)} blocks held")
    tailwatch.uninstall()


if __name__ == "__main__":
    main()
