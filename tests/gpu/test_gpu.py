"""On a CUDA machine, `pytest -m gpu`: that the tools see what we mark, and that a pause leaves the GPU idle.

It runs benchmarks/gpu.py, which prints by itself what it could not measure. Without a GPU its dry run (-m slow) runs
the same code but for CUDA.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
MISSING_TORCH = "torch is not installed: pip install torch"
LIMIT = 1800  # seconds for the script, which the first of its tests waits for


@pytest.fixture(scope="module")
def gpu() -> Iterator[ModuleType]:
    """The script as a module, beside its harness."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(SCRIPT.parent))


def run(tmp_path: Path, *options: str) -> dict[str, Any]:
    """What the script found."""
    target = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(target), *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def bars(found: dict[str, Any], begins: str) -> list[dict[str, Any]]:
    """Those of a name."""
    return [bar for bar in found["bars"] if bar["name"].startswith(begins)]


def not_measured(found: dict[str, Any], what: str) -> str:
    """The note about it, or ""."""
    return next((note for note in found["notes"] if note.startswith("NOT MEASURED") and what in note), "")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All of it, on the GPU."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip(MISSING_TORCH)
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here: run `pytest -m gpu` on a machine that has one, with torch installed")
    return run(tmp_path_factory.mktemp("gpu"))


@pytest.mark.gpu
@pytest.mark.timeout(LIMIT)
def test_no_kernel_begins_inside_a_pause(found: dict[str, Any]) -> None:
    """In the trace of torch's profiler no kernel begins inside a pause, and its own collections begin where ours do."""
    inside = bars(found, "kernels that begin inside")
    assert inside and inside[0]["met"], found["notes"]
    begin = bars(found, "begin of a pause")
    assert begin and begin[0]["met"], found["notes"]


@pytest.mark.gpu
@pytest.mark.timeout(LIMIT)
def test_nsight_compute_filters_by_our_ranges(found: dict[str, Any]) -> None:
    """It profiles the kernels inside steps, and those inside collections, and no other."""
    if why := not_measured(found, "Nsight Compute"):
        pytest.skip(why)
    filters = bars(found, "ncu, ")
    assert len(filters) == 3
    assert all(bar["met"] for bar in filters), filters


@pytest.mark.gpu
@pytest.mark.timeout(LIMIT)
def test_nsight_systems_shows_each_collection_as_an_idle_time(found: dict[str, Any]) -> None:
    """`tailwatch nsys` finds all that were planted."""
    if why := not_measured(found, "nsys") or not_measured(found, "idle times"):
        pytest.skip(why)
    assert all(bar["met"] for bar in bars(found, "nsys: ") if bar["met"] is not None), found["bars"]


@pytest.mark.gpu
@pytest.mark.timeout(LIMIT)
def test_the_overhead_was_measured(found: dict[str, Any]) -> None:
    """Against the loop without us, in three configurations; a timing of ours is no verdict here."""
    assert len(bars(found, "decode, ")) == 3
    assert all(bar["value"] > 0 for bar in bars(found, "decode, "))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_the_dry_run_runs_all_that_needs_no_cuda(tmp_path: Path) -> None:
    """On the CPU: the loop, its overhead in all configurations, torch's own collections against ours; what it cannot
    measure it reports."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip(MISSING_TORCH)
    found = run(tmp_path, "--cpu")

    assert "DRY RUN" in found["question"]
    assert len(bars(found, "decode, ")) == 3
    assert not_measured(found, "Nsight Compute")
    assert shutil.which("nsys") is not None or not_measured(found, "nsys")
    assert bars(found, "cpu_ops that begin inside 12 pauses")[0]["met"]


def test_without_torch_or_cuda_it_prints_a_sentence(tmp_path: Path) -> None:
    """Exit status 2, one sentence, no result."""
    script = "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['gpu.py']; sys.path.insert(0, sys.argv[0])\n"
    script += f"sys.path.insert(0, {str(SCRIPT.parent)!r}); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install torch" in done.stderr


NCU = """==PROF== Connected to process 17
{"decode": 3, "gc2": 2, "all": 10}
==PROF== Disconnected from process 17
"ID","Process ID","Process Name","Kernel Name","Metric Name","Metric Value"
"0","17","python3","add","gpu__time_duration.sum","2"
"1","17","python3","add","gpu__time_duration.sum","3"
"1","17","python3","add","another","3"
"""


def test_kernels_that_nsight_compute_lists_are_counted(gpu: ModuleType) -> None:
    """By their ID, whatever number of metrics each has; none where it profiled none."""
    assert gpu.profiled_kernels(NCU) == 2
    assert gpu.profiled_kernels("==WARNING== No kernels were profiled.\n") == 0


def test_a_time_between_two_clock_readings_is_on_the_line(gpu: ModuleType) -> None:
    """Also where REALTIME runs faster than MONOTONIC."""
    assert gpu._between(150, (100, 1000), (200, 1101)) == 1050
