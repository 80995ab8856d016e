"""torch's profiler and tailwatch on one timeline: operators, collections, and the tokens that these delayed.

python examples/traces/with_torch.py out.pftrace

What `tailwatch trace --merge torch_trace.json` does for a running server, in one process. Needs torch.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile

import tailwatch
from tailwatch.cli import main as command


def decode(tokens: int) -> None:
    """A model of one matrix, and garbage of every kind."""
    import torch

    weights, state = torch.rand(256, 256), torch.rand(1, 256)
    kept: list[object] = []
    with tailwatch.stream(model="toy") as request:
        for number in range(tokens):
            with tailwatch.step("decode", batch=1, waiting=1):
                state = torch.tanh(state @ weights)
            kept += [[i] for i in range(2000)]
            if number % 20 == 19:
                gc.collect()
            request.token()


def main() -> int:
    """Records both, and writes one file."""
    from torch.profiler import ProfilerActivity, profile

    out = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "out.pftrace")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        group, theirs = os.path.join(directory, "group"), os.path.join(directory, "torch.json")
        tailwatch.install(role="engine", dir=group, trace_events=100_000, gc="observe")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            decode(100)
        profiler.export_chrome_trace(theirs)
        status = command(["trace", "--dir", group, "--merge", theirs, "-o", out])
        tailwatch.uninstall()
    return status


if __name__ == "__main__":
    sys.exit(main())
