"""What an NVTX tool sees of collections, requests, steps and clocks, and that it sees nothing where it should not."""

from __future__ import annotations

import json

from tailwatch.options.config import Config

ONE_OF_EACH = """
import gc, json, tailwatch
gc.disable()
watch = tailwatch.install(gc="observe", role="engine")
class Cycle: pass
def cycles(n):
    for _ in range(n):
        one = Cycle(); one.itself = one
for generation in (0, 1, 2):
    gc.collect(generation)
gc.collect()
cycles(7)
gc.collect()
with tailwatch.stream(model="llama", route="/v1/chat") as s:
    s.token(); s.token(3); s.token()
with tailwatch.step("decode", batch=32, waiting=1):
    pass
watch.freeze()
tailwatch.uninstall()
gc.collect()
"""


def test_each_kind_is_seen_with_its_payload_and_category(watched) -> None:
    """Collections by generation with the objects collected, a request, its first token, a step, its process; all texts
    registered."""
    story = watched(ONE_OF_EACH)
    collections = [r for r in story.pushed() if r.begin.text != "gc_own"]

    assert [r.begin.text for r in collections[:5]] == ["gc0", "gc1", "gc2", "gc2", "gc2"]
    assert all(story.categories[r.begin.category] == r.begin.text for r in story.pushed())
    assert [r.begin.payload for r in sorted(story.pushed(), key=lambda r: r.begin.at)] == list(
        range(len(story.pushed()))
    )
    collected = story("mark", "collected")
    assert [e.payload for e in collected[3:5]][-1] >= 7
    (request,) = story.started("request")
    assert (request.begin.payload, story.categories[request.begin.category]) == (1, "requests")
    (first,) = story("mark", "first token")
    assert (first.payload, story.categories[first.category]) == (1, "llama /v1/chat")
    assert request.begin.at < first.at < request.end.at
    (step,) = story.started("decode")
    assert (step.begin.payload, story.categories[step.begin.category]) == (32, "steps")
    roles = story("mark", "engine")
    assert [(story.categories[e.category], e.payload) for e in roles] == [("process", 0)] * 2  # first and last
    assert all(e.registered for e in story.events if e.what in ("push", "start", "mark"))
    assert story("mark", "token") == []


def test_the_mark_of_what_was_collected_stands_inside_its_range(watched) -> None:
    """One for each collection, on its thread, before its pop, of its category."""
    story = watched(ONE_OF_EACH)
    collections = [r for r in story.pushed() if r.begin.text != "gc_own"]
    marks = story("mark", "collected")

    assert len(marks) == len(collections) > 5
    for each, mark in zip(sorted(collections, key=lambda r: r.end.at), marks, strict=True):
        assert each.begin.at < mark.at < each.end.at
        assert (each.begin.tid, each.begin.category) == (mark.tid, mark.category)


def test_a_freeze_is_a_range_around_its_collections(watched) -> None:
    """The pass is `gc_own`; its two collections nest in it."""
    story = watched(ONE_OF_EACH)
    (policy,) = story.pushed("gc_own")
    inside = [r for r in story.pushed() if policy.begin.at < r.begin.at < policy.end.at]

    assert [r.begin.text for r in inside] == ["gc2", "gc2"]
    assert all(r.begin.depth == 1 for r in inside)


def test_after_uninstall_nothing_is_seen(watched) -> None:
    """The last thing a tool sees is the clock anchor of uninstall()."""
    story = watched(ONE_OF_EACH)

    assert [e.text for e in story.events[-3:]] == ["tailwatch clock"] * 3


def test_tokens_are_marked_only_when_asked_for(watched) -> None:
    """With nvtx_tokens a mark for each message of tokens, whatever it holds, beside the first of a request."""
    story = watched(ONE_OF_EACH, TAILWATCH_NVTX_TOKENS="1")

    assert len(story("mark", "first token")) == 1
    assert [e.payload for e in story("mark", "token")] == [1, 1]


def test_off_does_not_even_ask(watched) -> None:
    """nvtx=off: no domain is made."""
    assert watched(ONE_OF_EACH, TAILWATCH_NVTX="off").events == []


ANCHORS = """
import time, tailwatch
from tailwatch.integrations import nvtx_attach
watch = tailwatch.install(gc="observe")
task, = [task for task in watch._daemon.tasks if task.run == watch.nvtx.anchor]
assert task.every == nvtx_attach.ANCHOR_SECONDS
task.run()
"""


def test_clock_anchors_come_in_bursts_at_start_by_the_daemon_and_at_the_end(watched) -> None:
    """Three marks each; the payload is CLOCK_MONOTONIC just before the call: after the mark before it, never later than
    the tool saw its own. The last burst comes at exit, without an uninstall()."""
    story = watched(ANCHORS)
    anchors = story("mark", "tailwatch clock")

    assert len(anchors) == 9
    assert all(story.before(e).what == "mark" for e in anchors)
    assert all(story.before(e).at <= e.payload <= e.at for e in anchors)


TIMES = """
import gc, json, time, tailwatch
from tailwatch._cold import ffi, lib
watch = tailwatch.install(gc="observe")
watch._daemon.stop()  # once a second it puts our callbacks back to both ends of the list
gc.disable()
before, after = [], []
gc.callbacks.insert(0, lambda phase, info: before.append(time.monotonic_ns()))
gc.callbacks.append(lambda phase, info: after.append(time.monotonic_ns()))
keep = [[[] for _ in range(1000)] for _ in range(30)]
for _ in range(20):
    gc.collect()
del gc.callbacks[0], gc.callbacks[-1]
pause = ffi.addressof(ffi.cast("const tw_segment *", watch.core.address), "pause")
record, booked = ffi.new("tw_pause_record *"), []
for number in range(pause.head):
    assert lib.tw_pause_read(pause, number, record)
    booked.append([record.start_ns, record.stop_ns])
print(json.dumps([booked[-20:], before, after]))
"""


def test_the_pauses_that_are_booked_begin_and_end_when_the_tool_saw_them(watched) -> None:
    """Each edge lies between the callbacks that were called before ours and after it; the tool saw the range between
    them too, after the edge."""
    story = watched(TIMES)
    booked, before, after = json.loads(story.printed)
    seen = story.pushed("gc2")[-20:]
    edges = [edge for pause in booked for edge in pause]
    stamps = [edge for each in seen for edge in (each.begin.at, each.end.at)]

    assert len(edges) == len(stamps) == len(before) == 40
    assert all(b <= edge <= stamp <= a for b, edge, stamp, a in zip(before, edges, stamps, after, strict=True))


NOT_THERE = """
import tailwatch
watch = tailwatch.install(gc="observe", nvtx=True)
print(watch.nvtx.attached, [note for note in watch.context().notes if "nvtx" in note])
"""


def test_a_missing_tool_that_was_requested_is_reported(alone) -> None:
    """nvtx=True without a tool: a sentence for the doctor with how to attach one; with `auto` there is none."""
    output = alone(NOT_THERE)
    assert output.startswith("False ['nvtx is on") and "no NVTX tool" in output
    assert alone(NOT_THERE.replace("True", "'auto'")) == "False []\n"


def test_a_tool_that_cannot_be_loaded_is_no_tool(alone) -> None:
    """A path that leads nowhere: installed as without one."""
    assert alone(NOT_THERE.replace("True", "'auto'"), NVTX_INJECTION64_PATH="/nonexistent/tool.so") == "False []\n"


NAMES = """
import tailwatch
watch = tailwatch.install(gc="observe")
for i in range(20):
    with tailwatch.step(f"step-{i}"):
        pass
for i in range(50):
    with tailwatch.stream(model=f"m{i}", route="/r") as s:
        s.token()
for i in range(400):
    tailwatch.nvtx.mark(f"mark {i}")
tailwatch.nvtx.mark("\\u00e9" * 100 + "\\ud800")
"""


def test_texts_from_outside_are_bounded(watched) -> None:
    """Of a tool's memory, which it never frees: 7 step names, 32 label sets and 256 texts, then "other"; cut at a
    character."""
    story = watched(NAMES)
    texts = [e.text for e in story("register")]

    assert len(texts) == len(set(texts)) <= 256 + 11
    assert {r.begin.text for r in story.started() if r.begin.text.startswith("step-")} == {
        f"step-{i}" for i in range(7)
    }
    assert len(story.started("other")) == 13
    labels = {e.category for e in story("mark", "first token")}
    assert len(labels) <= 32
    assert {story.categories[e.category] for e in story("mark", "first token")} >= {"m0 /r", "other other"}
    marks = [e.text for e in story("mark") if story.categories[e.category] == "user"]
    assert len(marks) == 401
    assert marks.count("other") > 100


LONG = """
import tailwatch
watch = tailwatch.install(gc="observe")
tailwatch.nvtx.mark("x" + "\\u00e9" * 100)
tailwatch.nvtx.mark("lone \\ud800 and nul \\0 hidden")
tailwatch.nvtx.mark("")
"""


def test_odd_texts_are_cut_at_a_character(watched) -> None:
    """127 bytes at most, a lone surrogate is '?', a NUL ends it."""
    marks = [e.text for e in watched(LONG)("mark") if e.category == 36]

    assert marks == ["x" + "\u00e9" * 63, "lone ? and nul ", ""]


def test_the_option_is_read_in_each_of_its_spellings() -> None:
    """True and False, words, and the words that booleans have in the environment."""
    assert [Config.read({"nvtx": value}, {}).nvtx for value in (True, False, "AUTO", "on")] == [
        "on",
        "off",
        "auto",
        "on",
    ]
    assert [Config.read({}, {"TAILWATCH_NVTX": v}).nvtx for v in ("1", "no", "Auto")] == ["on", "off", "auto"]
    assert (Config.read({}, {}).nvtx, Config.read({}, {}).nvtx_tokens) == ("auto", False)
