"""How many instructions our own code takes per stamp, step, chunk, frame, collection and turn of an event loop, against
committed budgets.

Counted by callgrind in a fresh interpreter whose clock goes on by as much at each reading, and only what runs inside
tailwatch._hot: not the interpreter, not the loop, not the C library. Such counts do not depend on the machine or on
what else it does, only on the compiler; so the budgets name the one they were taken with, and another one is not held
to them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tailwatch import _hot

from ..support.once import once

pytestmark = pytest.mark.stress

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "tests" / "native"
BUDGETS = json.loads((ROOT / "benchmarks" / "budgets.json").read_text())
HEAD_ROOM = 1.10

HEAD = """
import gc, importlib.util, itertools, sys
import callgrind_marks as marks

spec = importlib.util.spec_from_file_location("_hot", sys.argv[1])
hot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hot)
gc.disable()
slo = (2 * 10**9, 2 * 10**8, 0, 0, 990000)
core = hot.Core("api", 4, slo, 0, lambda scope: "/v1/chat", lambda waits, stream: waits)

def count(name, call, times, *arguments):
    for _ in range(100):
        call(*arguments)
    marks.start()
    for _ in itertools.repeat(None, times):
        call(*arguments)
    marks.stop(name)
"""

STAMPS = """
stream = core.stream("model", "/v1/chat", None, "", "")
count("stamp", stream.token, 2_000)

step = core.step("decode", 32, 5)
enter, leave = step.__enter__, step.__exit__
count("step made", core.step, 2_000, "decode", 32, 5)
count("step entered and left", lambda: (enter(), leave(None, None, None)), 2_000)

class Of:
    def __init__(self, **members):
        vars(self).update(members)

class Scheduler:
    def __init__(self):
        self.running, self.waiting, self.kv_cache_manager = [None] * 256, [], Of(usage=0.5)

    def schedule(self):
        return self.output

    def update_from_output(self, output, answer):
        return self.outputs

def batch(new):
    ids = [f"chatcmpl-{number:032x}" for number in range(256)]
    made = [0 if number == 100 and new else 5 for number in range(256)]
    tokens = dict.fromkeys(ids, 1)
    if new:
        tokens.update({"chatcmpl-new": 700, ids[100]: 512})
    return Of(
        scheduled_new_reqs=[Of(req_id="chatcmpl-new")] if new else [],
        scheduled_cached_reqs=Of(req_ids=ids, num_output_tokens=made, resumed_req_ids=set()),
        num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values()), scheduled_spec_decode_tokens={},
        preempted_req_ids=set(), has_structured_output_requests=False,
    )

answer = Of(sampled_token_ids=[], cudagraph_stats=None, kv_connector_output=None)
for name, new in (("engine step, 256 decoding", False), ("engine step, 256 with prefill", True)):
    scheduler = Scheduler()
    scheduler.output, scheduler.outputs = batch(new), {0: Of(timestamp=1234.5)}
    steps = hot.SchedulerSteps(core, scheduler, "m")
    schedule = steps.around("schedule", scheduler.schedule)
    update = steps.around("update_from_output", scheduler.update_from_output)
    count(name, lambda: update(schedule(), answer), 500)

class Flow:
    write_paused = False

def sender():
    scope, now = {"type": "http", "headers": []}, hot.now()
    made = core.request(scope, lambda message: None, True, now, now, 0, 1, Flow, False)
    made.send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    return made

def chunk(text, choice=0):
    frame = (
        b'data: {"id":"chatcmpl-4f1c8d9e0a5b4c1f9d7e6a2b3c4d5e6f","object":"chat.completion.chunk",'
        b'"created":1790412345,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":%d,"delta":{"content":"%s"},"logprobs":null,'
        b'"finish_reason":null,"token_ids":null}]}\\n\\n'
    )
    return {"type": "http.response.body", "body": frame % (choice, text), "more_body": True}

count("chunk", sender().send, 2_000, chunk(b" token"))
other = sender().send
turns = itertools.cycle([chunk(b" token"), chunk(b" token", 1)])
count("chunk of another shape", lambda: other(next(turns)), 2_000)

head = (
    b'data: {"id":"chatcmpl-4f1c8d9e0a5b4c1f9d7e6a2b3c4d5e6f","object":"chat.completion.chunk","created":1790412345,'
    b'"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":"'
)
tail = b'"},"logprobs":null,"finish_reason":null}]}\\n\\n'

class Chat(hot.Encoder):
    __slots__ = ()

    def __init__(self):
        self._template = hot.Template(head + tail, ((len(head), False),))

encoder = Chat()
assert encoder.content(" token") == head + b" token" + tail
count("content", encoder.content, 2_000, " token")

recording = hot.Core("api", 4, slo, 0, lambda scope: "/v1/chat", lambda waits, stream: waits)
recording.trace_start(1000)
recorded = recording.stream("model", "/v1/chat", None, "", "")
count("stamp, recorded", recorded.token, 2_000)
step = recording.step("decode", 32, 5)
enter, leave = step.__enter__, step.__exit__
count("step, recorded", lambda: (enter(), leave(None, None, None)), 2_000)

swept = hot.Core("api", 4, slo, 0, lambda scope: "/v1/chat", lambda waits, stream: waits)
slicer = hot.Slicer(swept, gc.collect)
older = [[]]
gc.collect(0), gc.collect(1)
aged = [[]]
gc.collect(0)
assert slicer.locate(gc.get_threshold(), aged, older, 1 << 22)
slicer.on = True
stream = swept.stream("model", "/v1/chat", None, "", "")
count("stamp, idle collection", stream.token, 2_000)
slicer.round()
slicer.slice(2_000)
assert slicer.midway
count("stamp, in the midst of a round", stream.token, 2_000)
assert slicer.midway and sum(slicer.counts()[name] for name in ("idle", "step", "request_end", "overdue")) == 0
slicer.on = False

recording.watch_gc(0, gc.callbacks, recording.gc_last)
gc.callbacks[:] = [recording.gc_first, recording.gc_last]
for generation in (0, 1):
    count(f"collection of generation {generation}, recorded", gc.collect, 50, generation)
gc.callbacks[:] = []

core.watch_gc(0, gc.callbacks, core.gc_last)
gc.callbacks[:] = [core.gc_first, core.gc_last]
for generation in (0, 1):
    count(f"collection of generation {generation}", gc.collect, 50, generation)
gc.callbacks[:] = []
"""

LOOPS = """
import asyncio, collections, contextvars, pathlib
package = pathlib.Path(sys.argv[1]).parent
spec = importlib.util.spec_from_file_location("handle_links", package / "stall" / "handle_links.py")
links = importlib.util.module_from_spec(spec)
spec.loader.exec_module(links)
timing = hot.Core("api", 4, slo, 0, lambda scope: "/v1/chat", lambda waits, stream: waits)
timing.stalls(1, sys.version_info[1], count.__code__, "")
timing.handle_links(links.samples(), count.__code__, contextvars.ContextVar("tailwatch", default=None))
hooks = hot.Slicer(timing, gc.collect)

async def turns(times):
    for _ in range(times):
        await asyncio.sleep(0)

async def tasks(times):
    await asyncio.gather(*(turns(times) for _ in range(10)))

def count_loop(loop, name):
    count(f"{name}, an iteration", lambda: loop.run_until_complete(turns(100)), 20)
    count(f"{name}, an iteration of 10 handles", lambda: loop.run_until_complete(tasks(100)), 4)

loop = asyncio.new_event_loop()
loop._selector.select = hooks.select(loop._selector)
loop._selector.select.time_handles(loop._ready)
count_loop(loop, "asyncio")
if sys.argv[2]:
    sys.path.append(sys.argv[2])
    import uvloop
    loop = uvloop.new_event_loop()
    held = hooks.uv(uvloop.loop.__file__, uvloop.loop.libuv_get_loop_t_ptr(loop))

    async def time_handles():
        found = [each for each in gc.get_referents(loop) if type(each) is collections.deque]
        timing.handle_links(links.samples(loop), count.__code__, contextvars.ContextVar("tailwatch", default=None))
        held.time_handles(*found)

    loop.run_until_complete(time_handles())
    count_loop(loop, "uvloop")
    waits = timing.stream("model", "/v1/chat", None, "", "")
    count_loop(loop, "uvloop, a request waits")
"""

TIMES = {
    "stamp": 2_000,
    "step made": 2_000,
    "step entered and left": 2_000,
    "engine step, 256 decoding": 500,
    "engine step, 256 with prefill": 500,
    "chunk": 2_000,
    "chunk of another shape": 2_000,
    "content": 2_000,
    "stamp, recorded": 2_000,
    "step, recorded": 2_000,
    "stamp, idle collection": 2_000,
    "stamp, in the midst of a round": 2_000,
    "collection of generation 0, recorded": 50,
    "collection of generation 1, recorded": 50,
    "collection of generation 0": 50,
    "collection of generation 1": 50,
    "asyncio, an iteration": 2_000,
    "asyncio, an iteration of 10 handles": 400,
    "uvloop, an iteration": 2_000,
    "uvloop, an iteration of 10 handles": 400,
    "uvloop, a request waits, an iteration": 2_000,
    "uvloop, a request waits, an iteration of 10 handles": 400,
}
UVLOOP = importlib.util.find_spec("uvloop")
if UVLOOP is None:
    TIMES = {name: times for name, times in TIMES.items() if not name.startswith("uvloop")}

PARTS = {"stamps": STAMPS, "loops": LOOPS}
BUDGETED = [name for name in TIMES if name not in ("stamp, idle collection", "stamp, in the midst of a round")]


def _compiler_of(library: Path) -> str:
    """What the module was compiled by, major version only: "gcc 12"."""
    found = re.search(rb"GCC: \([^)]*\) (\d+)\.", library.read_bytes())
    return f"gcc {found[1].decode()}" if found else "an unknown compiler"


class Cost(NamedTuple):
    """Of one operation: instructions of our own, and calls of ours into the interpreter and the C library."""

    instructions: float
    calls_out: float


def _cost(dump: Path, library: str, times: int) -> Cost:
    """From callgrind's output: self costs within one object file, and the calls that leave it."""
    names: dict[str, str] = {}
    instructions = calls = 0
    inside = inclusive = leaves = False
    for line in dump.read_text().splitlines():
        if found := re.match(r"(c?)ob=(\(\d+\))(?: (.*))?$", line):
            names.setdefault(found[2], found[3] or "")
            ours = Path(names[found[2]]).name == library
            if found[1]:
                leaves = not ours
            else:
                inside = ours
        elif found := re.match(r"calls=(\d+) ", line):
            calls += int(found[1]) if inside and leaves else 0
            inclusive, leaves = True, False  # the next line is what the called function cost
        elif found := re.match(r"[+*-]?\d* (\d+)$", line):
            instructions += 0 if inclusive or not inside else int(found[1])
            inclusive = False
    return Cost(instructions / times, calls / times)


def _part_of(name: str) -> str:
    return "loops" if name.startswith(("asyncio", "uvloop")) else "stamps"


class Counted:
    """Costs by name: of a stamp, a step, a chunk, a frame, a collection; of an iteration of a loop. Each of these two
    parts is counted when it is first asked for."""

    def __init__(self, count_part: Callable[[str], dict[str, Cost]]) -> None:
        self._count_part = count_part

    def __getitem__(self, name: str) -> Cost:
        return self._count_part(_part_of(name))[name]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, run_directory: Path) -> Counted:
    """Those of all tests of a run, once."""
    library = Path(_hot.__file__)
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed (Debian package: valgrind): instructions cannot be counted")
    if _compiler_of(library) != BUDGETS["compiler"]:
        pytest.skip(f"the budgets hold for {BUDGETS['compiler']}, this was built by {_compiler_of(library)}")

    @cache
    def count_part(part: str) -> dict[str, Cost]:
        made = once(
            run_directory, f"instructions of {part}", lambda: count(part, library, tmp_path_factory.mktemp("callgrind"))
        )
        return {name: Cost(*cost) for name, cost in made.items()}

    return Counted(count_part)


def count(part: str, library: Path, directory: Path) -> dict[str, Cost]:
    """Of each case of a part: runs them under callgrind. What is missing for that skips the test."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler
    include, marks = sysconfig.get_path("include"), directory / "callgrind_marks.so"
    build = [compiler, "-shared", "-fPIC", f"-I{include}", str(NATIVE / "callgrind_marks.c"), "-o", str(marks)]
    if subprocess.run(build, capture_output=True).returncode != 0:
        pytest.skip("the headers of valgrind are not installed (valgrind/callgrind.h, in Debian's package valgrind)")
    clock = directory / "steady_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(NATIVE / "steady_clock.c"), "-o", str(clock)], check=True)
    script = directory / "script.py"
    script.write_text(HEAD + PARTS[part])
    run = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory}/out",
        sys.executable, "-S", "-E", str(script), str(library),
        "" if UVLOOP is None or UVLOOP.origin is None else str(Path(UVLOOP.origin).parents[1]),
    ]  # fmt: skip
    environment = {"PYTHONHASHSEED": "0", "LD_PRELOAD": str(clock)}
    done = subprocess.run(run, cwd=directory, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    costs = {}
    cases = [(name, times) for name, times in TIMES.items() if _part_of(name) == part]
    for number, (name, times) in enumerate(cases, 1):
        dump = directory / f"out.{number}"
        assert f"desc: Trigger: Client Request: {name}\n" in dump.read_text()
        costs[name] = _cost(dump, library.name, times)
    return costs


@pytest.mark.parametrize("name", BUDGETED)
def test_instructions_are_within_their_budget(counted: Counted, name: str) -> None:
    """Our own instructions stay within the committed number and a tenth."""
    assert 0 < counted[name].instructions <= BUDGETS["instructions"][name] * HEAD_ROOM


@pytest.mark.parametrize("name", BUDGETED)
def test_calls_are_within_their_budget(counted: Counted, name: str) -> None:
    """We call the interpreter and the C library no more often than budgeted."""
    assert 0 < counted[name].calls_out <= BUDGETS["calls out"][name] + 0.1


def test_a_recorded_stamp_costs_a_quarter_more_at_most(counted: Counted) -> None:
    """An event of a trace is a few stores: no call, and at most a quarter of what the stamp takes."""
    assert counted["stamp, recorded"].instructions <= 1.25 * counted["stamp"].instructions
    assert counted["stamp, recorded"].calls_out == pytest.approx(counted["stamp"].calls_out, abs=0.01)


@pytest.mark.parametrize("name", ["stamp, idle collection", "stamp, in the midst of a round"])
def test_the_idle_gc_policy_costs_a_stamp_nothing(counted: Counted, name: str) -> None:
    """A core with a slicer, which is on: no instruction of ours more than one that has none, but for a gap that
    happens to be slow: under valgrind, on a busy machine, some are."""
    assert abs(counted[name].instructions - counted["stamp"].instructions) < 0.02 * counted["stamp"].instructions
    assert counted[name].calls_out == pytest.approx(counted["stamp"].calls_out, abs=0.01)


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_is_not_stale(counted: Counted, name: str) -> None:
    """A budget far above what the code takes would hold nothing: lower it with the code."""
    assert counted[name].instructions >= BUDGETS["instructions"][name] * 0.7
    assert counted[name].calls_out >= BUDGETS["calls out"][name] * 0.7
