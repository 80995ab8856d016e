"""A decode loop with CUDA graphs under tailwatch, on any CUDA machine with torch: what it costs there, and whether the
tools see what it marks.

    python benchmarks/gpu.py --json gpu.json      # the verdicts; needs CUDA, torch and a C compiler
    python benchmarks/gpu.py --cpu                # a dry run of everything that needs no CUDA: no result about a GPU

What is asked:
1. Overhead at the highest decode rate: a small model, so that a step is short; the time of a step with stamps and
   steps, with the trace file too, and under an NVTX tool that does nothing, each against the same loop without us,
   turn and turn about.
2. torch's profiler: its own "Python GC" events begin where our pauses begin (bar: 50 us), and the kernels stand still
   meanwhile: none begins inside a pause of the loop's own thread.
3. Nsight Compute's NVTX filter: of kernels inside and outside `tailwatch` ranges it profiles those inside, exactly.
4. Nsight Systems: `tailwatch nsys` finds each collection that was planted as an idle time of the GPU.

What cannot be measured here (no CUDA, no ncu, no nsys, no permission) is said, each with its reason, and fails nothing.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import Bar, Report, Samples, bar_of

HERE = Path(__file__).resolve()
BATCH, STEPS, PLANTED = 8, 200, 12
ALIGN_US = 50.0
OVERHEAD_BAR = 1.02
BARE, WATCHED = "without tailwatch", "with tailwatch"


# ---- the engine ----


class Engine:
    """A model with nothing in it but its cost: `layers` products of `width` x `width`, and the tokens read back each
    step. On a GPU one CUDA graph is replayed."""

    def __init__(self, device: str, *, layers: int = 2, width: int = 64, batch: int = BATCH) -> None:
        import torch

        self.torch: Any = torch
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.batch = batch
        self.weights = [torch.randn(width, width, device=device) / width**0.5 for _ in range(layers)]
        self.state = torch.randn(batch, width, device=device)
        self.graph: Any = None
        self.tokens = self._forward()
        if device == "cuda":
            self._capture()

    def _forward(self) -> Any:
        value = self.state
        for weights in self.weights:
            value = self.torch.relu(value @ weights)
        return value.argmax(dim=1)

    def _capture(self) -> None:
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._forward()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.tokens = self._forward()

    def step(self) -> list[int]:
        """One token of each request, read back as a server has to."""
        with self.torch.no_grad():
            if self.graph is not None:
                self.graph.replay()
            else:
                self.tokens = self._forward()
        return list(self.tokens.tolist())


def decode_bare(engine: Engine, steps: int) -> None:
    """The loop as it is without us."""
    for _ in range(steps):
        for _token in engine.step():
            pass


def decode_watched(engine: Engine, streams: Sequence[Any], step: Callable[..., Any], steps: int) -> None:
    """The same loop, its steps marked and each token stamped."""
    batch = engine.batch
    for _ in range(steps):
        with step("decode", batch=batch, waiting=batch):
            tokens = engine.step()
        for stream, _token in zip(streams, tokens, strict=True):
            stream.token()


def device_of(cpu: bool) -> str:
    """ "cuda", or "cpu" for the dry run."""
    if cpu:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else ""


# ---- 1. overhead ----


def child_overhead(cpu: bool, repeats: int) -> dict[str, list[float]]:
    """ns of a step in either loop, in this process."""
    import tailwatch

    engine = Engine(device_of(cpu))
    watch = tailwatch.install(gc="observe")
    gc.collect()
    gc.freeze()
    streams = [watch.core.stream("model", "/v1/chat", None, "", "") for _ in range(engine.batch)]
    times: dict[str, list[float]] = {BARE: [], WATCHED: []}
    runs: dict[str, Callable[[], None]] = {
        BARE: lambda: decode_bare(engine, STEPS),
        WATCHED: lambda: decode_watched(engine, streams, tailwatch.step, STEPS),
    }
    for turn in range(-2, repeats):
        for name in runs if turn % 2 == 0 else reversed(runs):
            start = time.perf_counter_ns()
            runs[name]()
            if turn >= 0:
                times[name].append((time.perf_counter_ns() - start) / STEPS)
    return times


def child(arguments: Sequence[str], *, prefix: Sequence[str] = (), **environment: str) -> str:
    """This file in another process; what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NVTX_", "TAILWATCH"))}
    command = [*prefix, sys.executable, str(HERE), *arguments]
    done = subprocess.run(command, env=env | environment, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} …: exit {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def overhead(made: Report, cpu: bool, quick: bool, directory: str) -> None:
    """Three configurations, each in processes of its own."""
    from bench_nvtx import build

    repeats = "5" if quick else "15"
    setups: dict[str, dict[str, str]] = {
        "stamps and steps": {},
        "and the trace file": {"TAILWATCH_TRACE_EVENTS": "1000000"},
    }
    try:
        setups["and a no-op NVTX tool"] = {"NVTX_INJECTION64_PATH": str(build(directory)), "TAILWATCH_NVTX_TOKENS": "1"}
    except (SystemExit, subprocess.CalledProcessError) as error:
        made.notes.append(f"NOT MEASURED: overhead under an NVTX tool: {error}")
    for label, environment in setups.items():
        samples = Samples([BARE, WATCHED])
        for _ in range(1 if quick else 3):
            for name, values in json.loads(
                child(["--child", "overhead", "--repeats", repeats, *_cpu(cpu)], **environment)
            ).items():
                samples.by_case[name] += values
        made.calls |= {f"a step, {name}, {label}": row for name, row in samples.calls().items()}
        made.bars.append(samples.ratio(WATCHED, BARE, bar=None if cpu else OVERHEAD_BAR, label=f"decode, {label}"))
        made.bars.append(samples.difference(WATCHED, BARE, label=f"one step of {BATCH} tokens, {label}", unit="us"))


def _cpu(cpu: bool) -> list[str]:
    return ["--cpu"] if cpu else []


# ---- 2. the torch profiler ----


def child_profile(cpu: bool, target: str) -> dict[str, Any]:
    """The loop with collections planted in it, under torch's profiler; what we booked of them, on REALTIME."""
    import torch
    from torch import profiler

    import tailwatch
    from tailwatch._cold import ffi, lib

    engine = Engine(device_of(cpu), width=256, layers=4)
    gc.disable()
    gc.collect()
    gc.freeze()
    keep = [[[] for _ in range(1000)] for _ in range(200)]  # so that a collection takes milliseconds
    watch = tailwatch.install(gc="observe", role="engine")
    streams = [watch.core.stream("model", "/v1/chat", None, "", "") for _ in range(engine.batch)]
    activities = [profiler.ProfilerActivity.CPU, *([] if cpu else [profiler.ProfilerActivity.CUDA])]
    own_gc: Any = None
    notes = []
    try:
        own_gc = torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)
    except (AttributeError, TypeError):
        notes.append("this torch does not record collections itself")
    before = (time.monotonic_ns(), time.time_ns())
    with profiler.profile(activities=activities, with_stack=own_gc is not None, experimental_config=own_gc) as made:
        for _ in range(PLANTED):
            decode_watched(engine, streams, tailwatch.step, 20)
            gc.collect()
    after = (time.monotonic_ns(), time.time_ns())
    made.export_chrome_trace(target)
    pause = ffi.addressof(ffi.cast("const tw_segment *", watch.core.address), "pause")
    record = ffi.new("tw_pause_record *")
    booked = []
    for number in range(pause.head):
        if lib.tw_pause_read(pause, number, record):
            booked.append([_between(record.start_ns, before, after), _between(record.stop_ns, before, after)])
    return {"booked": booked, "notes": notes, "kept": len(keep)}


def _between(monotonic: int, before: tuple[int, int], after: tuple[int, int]) -> int:
    """CLOCK_REALTIME of a monotonic time, on the line through two pairs."""
    return before[1] + (monotonic - before[0]) * (after[1] - before[1]) // (after[0] - before[0])


def aligned(made: Report, cpu: bool, directory: str) -> None:
    """torch's own events against ours."""
    target = Path(directory) / "torch.json"
    profiled = json.loads(child(["--child", "profile", "--target", str(target), *_cpu(cpu)]).splitlines()[-1])
    made.notes += [f"NOT MEASURED: {note}" for note in profiled["notes"]]
    trace = json.loads(target.read_text())
    base, events = trace.get("baseTimeNanoseconds", 0), trace["traceEvents"]
    ours = profiled["booked"]
    theirs = [(base + e["ts"] * 1e3, e["dur"] * 1e3) for e in events if e.get("name") == "Python GC" and "dur" in e]
    long = [(start, dur) for start, dur in theirs if dur >= 50_000]
    if long and ours:
        errors = [min(abs(a - start) for start, _ in long) / 1e3 for a, _ in ours]
        made.bars.append(bar_of("begin of a pause: ours - torch's own", errors, bar=ALIGN_US, unit="us"))
    else:
        made.notes.append("NOT MEASURED: alignment with torch's own collections: its trace has none")
    kind = "cpu_op" if cpu else "kernel"
    work = sorted((base + e["ts"] * 1e3) for e in events if e.get("cat") == kind and e.get("ph") == "X")
    if not work or not ours:
        made.notes.append(f"NOT MEASURED: whether {kind}s stand still in a pause: torch's trace has none of either")
        return
    inside = sum(1 for at in work for a, b in ours if a + 20_000 <= at <= b - 20_000)
    made.bars.append(_exactly(f"{kind}s that begin inside {len(ours)} pauses (of {len(work)})", inside, 0))


def _exactly(name: str, found: float, expected: float) -> Bar:
    return Bar(
        name, abs(found - expected), abs(found - expected), abs(found - expected), 0.0, unit="beside what is right"
    )


# ---- 3. Nsight Compute ----


def child_ranges() -> dict[str, int]:
    """Kernels inside a step of ours, inside a collection, and in neither: by name a tool cannot distinguish them."""
    import torch

    import tailwatch

    tailwatch.install(gc="observe", role="engine")
    gc.disable()
    value = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    for _ in range(3):
        with tailwatch.step("decode", batch=1, waiting=1):
            value.add_(1)
            torch.cuda.synchronize()
    for _ in range(5):
        value.add_(1)
    gc.callbacks.insert(1, lambda phase, info: value.add_(1) if phase == "stop" else None)  # between our two brackets
    gc.collect()
    gc.collect()
    torch.cuda.synchronize()
    return {"decode": 3, "gc2": 2, "all": 3 + 5 + 2}


NCU_FILTERS = (("tailwatch@decode", 3), ("tailwatch@gc2/", 2), ("tailwatch@no such range", 0))
"""Start/end ranges are named, push/pop ranges have a slash behind (Nsight Compute CLI, NVTX filtering)."""


def filtered(made: Report, ncu: str | None) -> None:
    """What ncu profiles by our ranges alone."""
    if ncu is None:
        made.notes.append("NOT MEASURED: Nsight Compute's NVTX filter: ncu is not on the PATH (or --ncu)")
        return
    for name, expected in NCU_FILTERS:
        prefix = [ncu, "--nvtx", "--nvtx-include", name, "--metrics", "gpu__time_duration.sum", "--csv"]
        prefix += ["--clock-control", "none"]  # the clocks of the card are left alone
        try:
            found = profiled_kernels(child(["--child", "ranges"], prefix=prefix))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            made.notes.append(f"NOT MEASURED: Nsight Compute with {name!r}: {str(error)[-300:]}")
            continue
        made.bars.append(_exactly(f"ncu, {name}: {found} kernels, {expected} expected", found, expected))


def profiled_kernels(printed: str) -> int:
    """How many kernels ncu's CSV lists."""
    lines = printed.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    return 0 if header is None else len({row["ID"] for row in csv.DictReader(lines[header:])})


# ---- 4. Nsight Systems ----


def child_capture(cpu: bool) -> dict[str, int]:
    """The loop with collections planted between its steps."""
    import tailwatch

    engine = Engine(device_of(cpu), width=512, layers=8)
    gc.disable()
    gc.collect()
    gc.freeze()
    keep = [[[] for _ in range(1000)] for _ in range(200)]
    watch = tailwatch.install(gc="observe", role="engine", nvtx_tokens=True)
    with tailwatch.stream(model="model") as one:
        streams = [one, *(watch.core.stream("model", "/v1/chat", None, "", "") for _ in range(engine.batch - 1))]
        for _ in range(PLANTED):
            decode_watched(engine, streams, tailwatch.step, 20)
            gc.collect()
        decode_watched(engine, streams, tailwatch.step, 20)
    tailwatch.uninstall()
    return {"planted": PLANTED, "kept": len(keep)}


def _patiently(run: Callable[[], object]) -> None:
    """nsys gives up where the machine is busy as it starts."""
    for turn in range(3):
        try:
            run()
            return
        except RuntimeError:
            if turn == 2:
                raise


def captured(made: Report, cpu: bool, nsys: str | None, directory: str) -> None:
    """What `tailwatch nsys` finds in a report that is made here."""
    from tailwatch.cli.nsys.idle import idle_times
    from tailwatch.cli.nsys.report import read

    if nsys is None:
        made.notes.append("NOT MEASURED: tailwatch nsys on a report made here: nsys is not on the PATH (or --nsys)")
        return
    report = Path(directory) / "report"
    what = "nvtx" if cpu else "cuda,nvtx"
    prefix = [nsys, "profile", f"--trace={what}", "--sample=none", "--cpuctxsw=none", "-o", str(report)]
    try:
        _patiently(lambda: child(["--child", "capture", *_cpu(cpu)], prefix=prefix))
        if not (made_report := report.with_suffix(".nsys-rep")).exists():
            kept = ", ".join(sorted(file.name for file in report.parent.glob("report.*"))) or "nothing"
            raise RuntimeError(f"it made no {made_report.name}, but {kept}: its importer is missing or failed")
        export = [nsys, "export", "--type", "sqlite", "-o", f"{report}.sqlite", f"{report}.nsys-rep"]
        subprocess.run(export, check=True, capture_output=True, timeout=600)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        made.notes.append(f"NOT MEASURED: tailwatch nsys on a report made here: {str(error)[-300:]}")
        return
    found = read(f"{report}.sqlite")
    pauses = [pause for pause in found.pauses if pause.cause == "gc2"]
    made.bars.append(
        _exactly(f"nsys: {len(pauses)} collections in the report, {PLANTED} planted", len(pauses), PLANTED)
    )
    if not found.work:
        made.notes.append("NOT MEASURED: idle times of a GPU: the report has no kernels")
        return
    idle = [one for one in idle_times(found, 500_000) if any(blame.cause == "gc2" for blame in one.blames)]
    made.bars.append(_exactly(f"nsys: {len(idle)} idle times with a collection, {PLANTED} planted", len(idle), PLANTED))
    shares = [one.blames[0].overlap / one.length for one in idle]
    if shares:
        made.bars.append(bar_of("nsys: part of such an idle time that the collection explains", shares))


# ---- all of it ----


def report(cpu: bool, quick: bool, ncu: str | None, nsys: str | None) -> Report:
    """Runs everything that can be run here."""
    made = Report(
        "A decode loop with CUDA graphs under tailwatch" if not cpu else "A DRY RUN ON THE CPU: nothing about a GPU"
    )
    made.machine |= _torch_facts(cpu)
    with tempfile.TemporaryDirectory() as directory:
        parts: dict[str, Callable[[], None]] = {
            "overhead": lambda: overhead(made, cpu, quick, directory),
            "torch's profiler": lambda: aligned(made, cpu, directory),
            "Nsight Systems": lambda: captured(made, cpu, nsys, directory),
        }
        if cpu:
            made.notes.append("NOT MEASURED: Nsight Compute's NVTX filter: it profiles kernels of a GPU")
        else:
            parts["Nsight Compute"] = lambda: filtered(made, ncu)
        for name, part in parts.items():
            try:
                part()
            except (RuntimeError, subprocess.SubprocessError, ValueError, KeyError) as error:
                made.notes.append(f"NOT MEASURED: {name}: {type(error).__name__}: {str(error)[-600:]}")
    return made


def _torch_facts(cpu: bool) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"torch": str(torch.__version__)}
    if not cpu:
        facts |= {"gpu": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda), "driver": _driver()}
    return facts


def _driver() -> str:
    """ "" where nvidia-smi is not there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="a dry run without CUDA")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    parser.add_argument("--ncu", default=shutil.which("ncu"), help="Nsight Compute")
    parser.add_argument("--nsys", default=os.environ.get("NSYS") or shutil.which("nsys"), help="Nsight Systems")
    for name in ("--child", "--repeats", "--target"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_child(parsed: argparse.Namespace) -> Any:
    if parsed.child == "overhead":
        return child_overhead(parsed.cpu, int(parsed.repeats))
    if parsed.child == "profile":
        return child_profile(parsed.cpu, parsed.target)
    return child_ranges() if parsed.child == "ranges" else child_capture(parsed.cpu)


def main() -> int:
    """2: it cannot run here at all."""
    parsed = _arguments()
    if parsed.child:
        print(json.dumps(_run_child(parsed)))
        return 0
    try:
        device = device_of(parsed.cpu)
        import torch  # noqa: F401
    except ImportError:
        print("gpu.py: torch is not installed: pip install torch", file=sys.stderr)
        return 2
    if not device:
        print(
            "gpu.py: torch finds no CUDA device here: nothing about a GPU was measured (--cpu: a dry run)",
            file=sys.stderr,
        )
        return 2
    made = report(parsed.cpu, parsed.quick, parsed.ncu, parsed.nsys)
    print(made)
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(made.as_dict(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
