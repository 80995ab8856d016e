"""tailwatch.profile(): a stage of its own, a manifest of what is where, and everything off again at the end."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tailwatch
from tailwatch.cli import main
from tailwatch.errors import NotInstalledError, OptionError, TailwatchError
from tailwatch.runtime import profile
from tailwatch.snapshots.serialization import from_dict

from ..support.process import Python
from ..support.waiting import until

pytestmark = pytest.mark.integration


@contextmanager
def traffic() -> Iterator[None]:
    """Requests, one after the other, for as long as the block lasts."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with tailwatch.stream(model="llama") as s:
                s.token()
                s.token()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def installed() -> Iterator[Callable[..., tailwatch.Watch]]:
    """install(**options), undone at the end."""
    yield lambda **options: tailwatch.install(gc="observe", **options)
    tailwatch.uninstall()


def test_a_stage_leaves_a_timeline_its_numbers_and_a_manifest(installed: Any, tmp_path: Path) -> None:
    """Of a process that records nothing otherwise; afterwards it records nothing again."""
    watch = installed()
    with traffic():
        made = tailwatch.profile(tmp_path / "out", requests=20)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())

    assert made.complete and made.requests >= 20
    assert manifest["complete"] and manifest["requests"] == {"requested": 20, "ended": made.requests}
    assert manifest["from"]["monotonic_ns"] < manifest["to"]["monotonic_ns"]
    assert set(manifest["files"]) == {"tailwatch.pftrace", "snapshot.json"}
    assert set(made.files) == {*manifest["files"], "manifest.json"}
    assert all((made.path / name).stat().st_size > 0 for name in made.files)
    assert (manifest["role"], manifest["notes"], manifest["torch"]) == ("worker", [], None)
    assert not watch.core.tracing


ENGINE = """
import sys, tailwatch
print(tailwatch.install(role="engine", dir=sys.argv[1], gc="off").membership.joined, flush=True)
sys.stdin.read()
"""


def test_a_process_that_records_nothing_is_noted(installed: Any, tmp_path: Path) -> None:
    """Another process of the group without the option trace is not in the timeline, and there is a note."""
    group = tmp_path / "group"
    with Python(ENGINE, group) as engine:
        assert engine.read_line() == "True"
        installed(role="api", dir=group).membership.renew()
        with traffic():
            made = tailwatch.profile(tmp_path / "out", requests=1)

    (note,) = [note for note in made.notes if "tailwatch.pftrace" in note]
    assert "trace_events is 0" in note and note.endswith(": engine-0")


def test_its_numbers_are_of_the_stage_alone(installed: Any, tmp_path: Path) -> None:
    """What was measured before it is not in them."""
    installed()
    for _ in range(500):
        with tailwatch.stream() as s:
            s.token()
    with traffic():
        tailwatch.profile(tmp_path, requests=1)
    numbers = json.loads((tmp_path / "snapshot.json").read_text())

    saved = from_dict(numbers)
    assert 1 <= saved.ttft.count <= tailwatch.snapshot().ttft.count - 500
    assert main(["doctor", str(tmp_path / "snapshot.json")]) in (0, 1)


def test_what_is_recorded_anyway_goes_on(installed: Any, tmp_path: Path) -> None:
    """With the option trace the stage takes what is there, and does not stop it."""
    watch = installed(trace_events=10_000)
    with traffic():
        made = tailwatch.profile(tmp_path, requests=3)

    assert "tailwatch.pftrace" in made.files
    assert watch.core.tracing


def test_a_timeline_in_json_is_one_document(installed: Any, tmp_path: Path) -> None:
    """It ends once."""
    watch = installed(trace_events=10_000)
    with tailwatch.stream() as s:
        s.token()
    watch.trace(tmp_path / "t.json", format="json")

    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_the_time_may_be_over_first(installed: Any, tmp_path: Path) -> None:
    """Without traffic: a manifest without any."""
    installed()
    made = tailwatch.profile(tmp_path, requests=5, seconds=0.1)

    assert (made.complete, made.requests) == (False, 0)
    assert json.loads((tmp_path / "manifest.json").read_text())["complete"] is False


def test_a_second_profile_is_refused_while_one_runs(installed: Any, tmp_path: Path) -> None:
    """In this process, wherever it would write; the first goes on and ends."""
    watch = installed()
    found: list[profile.Profiled] = []
    thread = threading.Thread(target=lambda: found.append(tailwatch.profile(tmp_path / "a", requests=1, seconds=30)))
    thread.start()
    until(lambda: watch.core.tracing)
    with pytest.raises(TailwatchError, match="another profile is running"):
        tailwatch.profile(tmp_path / "b")
    with tailwatch.stream() as s:
        s.token()
    thread.join()

    assert found[0].requests == 1
    assert not (tmp_path / "b").exists()


def test_a_directory_that_another_process_writes_to_is_refused(installed: Any, tmp_path: Path) -> None:
    """It is locked while a profile is written into it."""
    installed()
    with profile._locked(tmp_path), pytest.raises(TailwatchError, match="another process is writing"):
        tailwatch.profile(tmp_path)


def test_a_profile_is_not_overwritten(installed: Any, tmp_path: Path) -> None:
    """One that is there stays as it is."""
    installed()
    tailwatch.profile(tmp_path, requests=1, seconds=0.01)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(TailwatchError, match="holds a profile already"):
        tailwatch.profile(tmp_path, requests=1, seconds=0.01)

    assert (tmp_path / "manifest.json").read_bytes() == before


def test_an_event_loop_is_not_stopped(installed: Any, tmp_path: Path) -> None:
    """Called in a coroutine the error has what to do; by asyncio.to_thread it works."""
    installed()

    async def both() -> profile.Profiled:
        with pytest.raises(TailwatchError, match=r"await asyncio\.to_thread"):
            tailwatch.profile(tmp_path)
        return await asyncio.to_thread(tailwatch.profile, tmp_path, requests=1, seconds=0.05)

    assert asyncio.run(both()).path == tmp_path


def test_uninstall_ends_it(installed: Any, tmp_path: Path) -> None:
    """What there is by then is written, with a note."""
    watch = installed()
    found: list[profile.Profiled] = []
    thread = threading.Thread(target=lambda: found.append(tailwatch.profile(tmp_path, requests=5, seconds=30)))
    thread.start()
    until(lambda: watch.core.tracing)
    tailwatch.uninstall()
    thread.join()

    assert "uninstall() was called during the profile" in found[0].notes
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    "given", [{"requests": 0}, {"requests": True}, {"requests": 1.5}, {"seconds": 0}, {"seconds": "1"}]
)
def test_bad_numbers_are_refused(given: dict[str, Any], installed: Any, tmp_path: Path) -> None:
    """By name, and nothing is written."""
    installed()
    with pytest.raises(OptionError, match=f"^{next(iter(given))}="):
        tailwatch.profile(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_a_path_that_cannot_be_written_is_refused(installed: Any, tmp_path: Path) -> None:
    """With the system's reason."""
    installed()
    (tmp_path / "file").write_text("")
    with pytest.raises(TailwatchError, match="file: File exists"):
        tailwatch.profile(tmp_path / "file")


def test_without_install_it_raises(tmp_path: Path) -> None:
    """NotInstalledError."""
    with pytest.raises(NotInstalledError):
        tailwatch.profile(tmp_path)


class Profiler:
    """As torch.profiler.profile."""

    def __init__(self, activities: list[str], experimental_config: object = None) -> None:
        self.activities, self.experimental_config = activities, experimental_config
        self.calls: list[str] = []
        made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        self.calls.append("export")
        if self.activities == ["fails"]:
            raise RuntimeError("no room")
        Path(path).write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": []}))


made: list[Profiler] = []


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch with as much of it as is used."""
    made.clear()
    module: Any = ModuleType("torch")
    module.__version__ = "9.9"
    module.cuda = SimpleNamespace(is_available=lambda: False)
    module._C = SimpleNamespace(_profiler=SimpleNamespace())
    module.profiler = ModuleType("torch.profiler")
    module.profiler.ProfilerActivity = SimpleNamespace(CPU="cpu", CUDA="cuda")
    module.profiler.profile = Profiler
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.profiler", module.profiler)
    return module


def test_torch_is_profiled_where_it_is_loaded(torch: Any, installed: Any, tmp_path: Path) -> None:
    """From start to stop of the stage; CUDA where there is one; what its version cannot do is noted."""
    installed()
    torch.cuda.is_available = lambda: True
    with traffic():
        found = tailwatch.profile(tmp_path, requests=2)
    manifest = json.loads((tmp_path / "manifest.json").read_text())

    assert (made[0].activities, made[0].calls) == (["cpu", "cuda"], ["start", "stop", "export"])
    assert manifest["torch"] == {"version": "9.9", "cuda": True, "all_threads": False}
    assert any("only the operators of the thread" in note for note in found.notes)
    assert "torch.json" in found.files


def test_a_torch_that_fails_costs_only_its_own_file(torch: Any, installed: Any, tmp_path: Path) -> None:
    """The rest is there, and why it is not all."""
    installed()
    torch.profiler.ProfilerActivity.CPU = "fails"
    with traffic():
        found = tailwatch.profile(tmp_path, requests=1)

    assert "torch.json" not in found.files
    assert any("RuntimeError: no room" in note for note in found.notes)
    assert "tailwatch.pftrace" in found.files


def test_torch_may_be_left_out(torch: Any, installed: Any, tmp_path: Path) -> None:
    """torch=False."""
    installed()
    tailwatch.profile(tmp_path, requests=1, seconds=0.01, torch=False)

    assert made == []


def test_a_torch_that_is_missing_is_noted(installed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch=True where it cannot be imported: a note, and the rest."""
    installed()
    monkeypatch.setitem(sys.modules, "torch", None)
    found = tailwatch.profile(tmp_path, requests=1, seconds=0.01, torch=True)

    assert any("torch " in note and "cannot be imported" in note for note in found.notes)


def test_with_the_real_torch(installed: Any, tmp_path: Path) -> None:
    """Its own trace, and one file in which both stand on one clock."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch")
    installed()
    with traffic():
        found = tailwatch.profile(tmp_path, requests=5, torch=True)

    assert {"torch.json", "together.json", "tailwatch.pftrace"} <= set(found.files), found.notes
    assert json.loads((tmp_path / "together.json").read_text())["traceEvents"]
