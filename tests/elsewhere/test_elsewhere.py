"""macOS and Windows, as far as they can be had on Linux: the package without its compiled modules, under a Python that
names itself after another system and lacks what that system's Python lacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.loadtest.results import load as load_result
from tailwatch.runtime.manual import StreamContext

from ..support.process import Script, clean_environment

SIMULATED = Path(__file__).with_name("simulated.py")
FAULT_SERVER = Path(__file__).parents[1] / "loadtest" / "fault_server.py"

LAPTOP = """
import asyncio, json, logging, sys
import tailwatch
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

lines = []
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("tailwatch").addHandler(Lines())

app = FastAPI()
before = app.__class__
watch = tailwatch.install(app, slo="ttft<=500ms")
assert tailwatch.install(app) is watch is tailwatch.current() and watch.app is app and app.__class__ is before
app.add_middleware(tailwatch.Middleware, gc="freeze")
with tailwatch.stream(model="m", route="r") as s, tailwatch.step("decode", batch=2):
    s.token(2)
tailwatch.nvtx.mark("nothing")
for refused in (tailwatch.snapshot, tailwatch.doctor, tailwatch.freeze, watch.snapshot, tailwatch.load_signal):
    try:
        refused()
    except tailwatch.UnsupportedError as error:
        assert "Linux only" in str(error)
    else:
        raise AssertionError(refused)
try:
    tailwatch.install(slo="ttft<=1parsec")
except tailwatch.OptionError:
    pass
else:
    raise AssertionError("a bad option was taken")

@app.get("/")
async def root():
    async def body():
        yield b"one"
        yield b"two"
    return StreamingResponse(body())

from fastapi.testclient import TestClient
assert TestClient(app).get("/").text == "onetwo"
assert tailwatch.uninstall() == []
print(json.dumps(lines))
"""

ENCODED = """
import json, sys
from tailwatch import sse
chat = sse.ChatStream("id", "m", 7, like=sys.argv[1])
made = [*(chat.content(text) for text in json.loads(sys.argv[2])), chat.finish("stop")]
answer = sse.ResponseStream("resp", "m", 7)
made += [answer.created(), answer.item("i")]
made += [answer.content(text, tokens=2) for text in json.loads(sys.argv[2])]
message = sse.MessageStream("msg", "m")
made += [message.message_start(input=3), message.block_start()]
made += [message.content(text) for text in json.loads(sys.argv[2])]
learned = sse.Template.learn(b'data: {"a":"hole","b":1}\\n\\n', "hole")
made += [learned.splice(text) for text in json.loads(sys.argv[2])]
print(json.dumps([frame.decode() for frame in made]))
"""

TEXTS = ["", "plain", 'quo"te\\', "line\nend\ttab\r", "\x00\x1f\x7f", "\u20ac\u2028 \U0001f600", "</script>"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel for another system has: the package, without its compiled modules and without the .pth file."""
    directory = tmp_path_factory.mktemp("wheel")
    site = Path(tailwatch.__file__).parents[1]
    for name in ("tailwatch", "tailwatch_boot"):
        shutil.copytree(site / name, directory / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return directory


@pytest.fixture(params=["darwin", "win32"])
def system(request: pytest.FixtureRequest) -> str:
    """Name of another system."""
    return str(request.param)


def there(system: str, package: Path, *arguments: str | Path, statuses: tuple[int, ...] = (0,)) -> str:
    """What a script or module prints on another system; its status is one of those."""
    command = [sys.executable, SIMULATED, system, package, *arguments]
    environment = clean_environment(PYTHONWARNINGS="ignore")
    done = subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True)
    assert done.returncode in statuses, done.stdout + done.stderr
    return done.stdout + done.stderr


def here(directory: Path, *arguments: str) -> str:
    """What a command prints on this system."""
    command = [sys.executable, "-m", "tailwatch", *arguments]
    return subprocess.run(command, env=clean_environment(), cwd=directory, capture_output=True, text=True).stdout


def test_a_laptop_s_server_starts(system: str, package: Path, tmp_path: Path) -> None:
    """install() changes nothing, and one warning gives the reason."""
    script = tmp_path / "laptop.py"
    script.write_text(LAPTOP)
    (line,) = json.loads(there(system, package, script).splitlines()[-1])
    assert "install() measures nothing on this system: it needs Linux" in line


@pytest.mark.parametrize("like", ["openai", "vllm", "sglang"])
def test_the_encoders_write_the_same_bytes(system: str, package: Path, tmp_path: Path, like: str) -> None:
    """In Python as in C."""
    script = tmp_path / "encoded.py"
    script.write_text(ENCODED)
    arguments = [str(script), like, json.dumps(TEXTS)]
    here = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert json.loads(there(system, package, *arguments)) == json.loads(here)


@pytest.fixture
def server() -> Iterator[Script]:
    """The load tester's fault server; its port is its first line."""
    with Script(FAULT_SERVER) as running:
        yield running


@pytest.mark.slow
@pytest.mark.integration
def test_the_load_tester_measures_and_compares(system: str, package: Path, tmp_path: Path, server: Script) -> None:
    """bench there gives what bench here gives, and both files are compared in both places with the same result."""
    url = f"http://127.0.0.1:{server.read()}/v1/completions?tokens=6&gap=0.005&freeze=0.05"
    options = ("--model", "m", "--rate", "40", "--requests", "20", "--slo", "ttft<=2s,itl<=1s@50%", "--quiet")
    files = [str(tmp_path / name) for name in ("there.json", "here.json")]
    load = ("bench", url, *options, "--json")
    there(system, package, "-m", "tailwatch", *load, files[0], statuses=(0, 1))  # 1: the machine had no time for it
    here(tmp_path, *load, files[1])
    ours, theirs = (json.loads(Path(file).read_text(encoding="utf-8")) for file in files)
    assert ours.keys() == theirs.keys() and ours["layout"] == theirs["layout"]
    for run in (load_result(file)[0] for file in files):
        assert (run.outcomes.good, run.latencies.itl.count, run.latencies.ttft.count) == (20, 20 * 5, 20)
    compared = there(system, package, "-m", "tailwatch", "compare", *files)
    assert compared == here(tmp_path, "compare", *files)


def test_a_saved_snapshot_is_diagnosed(system: str, package: Path, tmp_path: Path) -> None:
    """`doctor FILE` prints what it prints here."""
    from tailwatch import snapshots

    core = _hot.Core("api", 4, (0, 0, 0, 0, 0), 10**9, lambda scope: "", lambda awaitable, stream: awaitable, False)
    with StreamContext(core.stream("m", "/r", None, "", "")) as stream:
        stream.token()
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(snapshots.take([core.address]).as_dict()), encoding="utf-8")
    printed = here(tmp_path, "doctor", str(file))
    assert there(system, package, "-m", "tailwatch", "doctor", file) == printed


REFUSED = """
import contextlib, io, json
from tailwatch import cli
refused = []
for command in ("run", "top", "trace", "gc"):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        refused.append([cli.main([command, "-x", "y"]), err.getvalue()])
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
    cli.main(["--help"])
print(json.dumps([refused, out.getvalue()]))
"""


def test_commands_for_linux_are_refused(system: str, package: Path, tmp_path: Path) -> None:
    """With the reason, whatever their arguments; --help lists them as such."""
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    printed, help = json.loads(there(system, package, script))
    names = ("run", "top", "trace", "gc")
    assert printed == [[2, f"tailwatch: tailwatch {name}: this command needs Linux\n"] for name in names]
    assert "run, top, trace, gc: these commands need Linux" in help
