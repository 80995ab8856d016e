"""A process that records its own trace while another tool traces it. python beside.py TOOL GROUP_DIRECTORY OUT"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tailwatch

ROUNDS = 8
KEPT = [[i, [i]] for i in range(100_000)]


def marked(round_: int) -> None:
    """A function whose calls the tools see: a collection of the whole heap, stamped around it by the stream."""
    gc.collect()


def work() -> None:
    """Some rounds of a stream's life."""
    with tailwatch.stream(model="m") as stream:
        for round_ in range(ROUNDS):
            stream.token()
            marked(round_)
            time.sleep(0.005)


@contextmanager
def under_viztracer(out: Path) -> Iterator[None]:
    """Its JSON, with its own note of each collection."""
    from viztracer import VizTracer

    with VizTracer(output_file=str(out), log_gc=True, verbose=0):
        yield


@contextmanager
def under_torch(out: Path) -> Iterator[None]:
    """Kineto's JSON, with "Python GC" slices of its own."""
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    own = _ExperimentalConfig(record_python_gc_info=True)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, experimental_config=own) as profiler:
        torch.ones(64, 64) @ torch.ones(64, 64)
        yield
    profiler.export_chrome_trace(str(out))


@contextmanager
def under_jax(out: Path) -> Iterator[None]:
    """XProf's files, in a directory; a named annotation around each collection."""
    import jax

    globals()["marked"] = annotated(marked)
    jax.profiler.start_trace(str(out))
    yield
    jax.profiler.stop_trace()


def annotated(call: Callable[[int], None]) -> Callable[[int], None]:
    """The same, so that JAX's profiler sees it."""
    import jax

    def inside(round_: int) -> None:
        with jax.profiler.TraceAnnotation("tailwatch test collection"):
            call(round_)

    return inside


if __name__ == "__main__":
    tool, directory, written = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    tailwatch.install(role="engine", dir=directory, trace_events=65536, gc="observe")
    with {"viztracer": under_viztracer, "torch": under_torch, "jax": under_jax}[tool](written):
        work()
