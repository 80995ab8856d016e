"""Ranges stay balanced, and on their thread, with threads, tasks, exceptions, forks and uninstall() in the middle."""

from __future__ import annotations

from collections import Counter

THREADS = """
import gc, threading, tailwatch
gc.disable()
watch = tailwatch.install(gc="observe")
start = threading.Barrier(4)
def work(number):
    start.wait()
    for i in range(50):
        gc.collect(i % 3)
        with tailwatch.stream(model=f"m{number}") as s:
            s.token(); s.token()
            with tailwatch.step("decode", batch=number):
                gc.collect(0)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
print(*(thread.native_id for thread in threads))
for thread in threads: thread.join()
"""


def test_collections_of_many_threads_each_nest_on_their_own(watched) -> None:
    """Four threads collect and stream at once: every push has its pop on the thread that collected, none is lost."""
    story = watched(THREADS)
    ranges = story.pushed()

    assert {r.begin.tid for r in ranges} >= {int(tid) for tid in story.printed.split()}
    assert all(r.begin.tid == r.end.tid for r in ranges)
    # A collection that finds another one at work does nothing, and calls nothing.
    assert 0 < len(ranges) <= 400
    assert len(story("mark", "collected")) == len(ranges)
    assert len(story.started("request")) == len(story.started("decode")) == 200
    assert sorted(r.begin.payload for r in story.started("request")) == list(range(1, 201))
    assert Counter(r.begin.payload for r in story.started("decode")) == {0: 50, 1: 50, 2: 50, 3: 50}


TASKS = """
import asyncio, gc, tailwatch
from tailwatch import nvtx
watch = tailwatch.install(gc="observe")
async def request(number):
    async with tailwatch.stream(model="m") as s:
        for _ in range(3):
            await asyncio.sleep(0.001 * (number % 3))
            s.token()
        if number % 5 == 0:
            raise ValueError(number)
        with tailwatch.step("decode", batch=number):
            await asyncio.sleep(0.002)
        async with nvtx.range("mine", payload=number):
            await asyncio.sleep(0.001)
async def main():
    await asyncio.gather(*map(request, range(20)), return_exceptions=True)
    gc.collect()
asyncio.run(main())
"""


def test_requests_and_steps_that_overlap_on_one_thread(watched) -> None:
    """Twenty tasks, a quarter of which raise: ranges overlap, each ends by its own id, in its own order."""
    story = watched(TASKS)
    requests = story.started("request")

    assert len(requests) == 20
    assert len({r.begin.payload for r in requests}) == 20
    assert any(a.begin.at < b.begin.at < a.end.at < b.end.at for a in requests for b in requests)
    assert len(story.started("decode")) == len(story.started("mine")) == 16
    assert {r.begin.payload for r in story.started("mine")} == {n for n in range(20) if n % 5}
    assert len(story("mark", "first token")) == 20


EXCEPTIONS = """
import gc, tailwatch
watch = tailwatch.install(gc="observe")
def raises(): raise KeyError
for make in (lambda: tailwatch.stream(), lambda: tailwatch.step("decode"), lambda: tailwatch.nvtx.range("mine")):
    for error in (ValueError, KeyboardInterrupt, GeneratorExit, SystemExit):
        try:
            with make():
                raise error
        except BaseException:
            pass
def bad(phase, info):
    raise RuntimeError("a callback of the app's own")
import sys
sys.unraisablehook = lambda unraisable: None
gc.callbacks.insert(1, bad)
gc.collect()
gc.callbacks.remove(bad)
left = tailwatch.step("left open")
left.__enter__()
del left
again = tailwatch.step("again")
with again:
    with again:
        pass
stream = tailwatch.current().core.stream("m", "r", None, "", "")
stream.token()
del stream
"""


def test_what_is_raised_inside_ends_the_range(watched) -> None:
    """Whatever it is; also a callback of the app's own that raises in a collection, a step that is let go while open,
    one entered twice, a stream that is dropped."""
    story = watched(EXCEPTIONS)

    assert len(story.pushed("gc2")) >= 1
    assert len(story.started("request")) == 5
    assert len(story.started("decode")) == len(story.started("mine")) == 4
    assert len(story.started("left open")) == len(story.started("again")) == 1


FORK = """
import gc, os, sys, tailwatch
watch = tailwatch.install(gc="observe", role="engine")
gc.disable()
stream = tailwatch.stream(model="m")
step = tailwatch.step("decode")
mine = tailwatch.nvtx.range("mine")
with stream as s, step, mine:
    s.token()
    pid = os.fork()
    if pid == 0:
        s.token()
        gc.collect()
        with tailwatch.stream(model="n") as own:
            own.token()
        print(watch.core.opened, flush=True)
if pid:
    os.waitpid(pid, 0)
    gc.collect()
    print(pid)
    tailwatch.uninstall()
else:
    os._exit(0)
"""


def test_a_fork_child_begins_anew_and_ends_nothing_of_its_parents(watched) -> None:
    """What the parent had open ends in the parent, once; the child has ranges, a clock anchor and a role of its own."""
    story = watched(FORK)
    opened, child = map(int, story.printed.split())
    requests = story.started("request")

    assert opened == 1
    assert len(requests) == 2
    assert [r.begin.payload for r in requests if r.begin.pid == child] == [1]
    assert all(r.begin.pid == r.end.pid != child for r in story.started("decode") + story.started("mine"))
    assert len(story.started("decode")) == len(story.started("mine")) == 1
    assert {r.begin.pid for r in story.pushed("gc2")} == {child, *(r.begin.pid for r in story.started("decode"))}
    assert len([e for e in story("mark", "tailwatch clock") if e.pid == child]) == 3
    assert len([e for e in story("mark", "engine") if e.pid == child]) == 1


IN_THE_MIDDLE = """
import gc, tailwatch
watch = tailwatch.install(gc="observe")
gc.disable()
with tailwatch.stream() as s, tailwatch.step("decode"), tailwatch.nvtx.range("mine"):
    s.token()
    tailwatch.uninstall()
    gc.collect()
    with tailwatch.nvtx.range("inert"): pass
    tailwatch.install(gc="observe", nvtx_tokens=True)
with tailwatch.stream() as s:
    s.token(); s.token()
    with tailwatch.step("decode"): pass
gc.collect()
"""


def test_what_is_open_at_uninstall_still_ends(watched) -> None:
    """A request, a step and a range of the user's that go on across uninstall() and another install() end where their
    block ends; between the two nothing begins."""
    story = watched(IN_THE_MIDDLE)

    assert len(story.started("request")) == 2
    assert len(story.started("decode")) == 2
    assert len(story.started("mine")) == 1
    assert story.started("inert") == []
    assert len(story.pushed("gc2")) == 1
    assert len(story("mark", "token")) == 1
    assert len([e for e in story("register") if e.text == "decode"]) == 1


LOST = """
import gc, threading, tailwatch
watch = tailwatch.install(gc="observe")
gc.disable()
first, last = gc.callbacks[0], gc.callbacks[-1]
def take_out(phase, info):  # the last of ours is not called at this collection's end
    if phase == "start":
        gc.callbacks.remove(last)
def lose():
    gc.callbacks.insert(1, take_out)
    gc.collect()
    gc.callbacks.remove(take_out)
    gc.callbacks.append(last)
done = threading.Event(), threading.Event()
def other():
    lose()
    done[0].set()
    done[1].wait(30)
    gc.collect()
thread = threading.Thread(target=other)
lose()
gc.collect()
thread.start()
done[0].wait(30)
gc.collect()
done[1].set()
thread.join()
"""


def test_a_collection_whose_end_is_never_reported_is_popped_on_its_own_thread(watched) -> None:
    """Our last callback is taken out meanwhile: the range ends before the next begins on that thread."""
    story = watched(LOST)
    ranges = story.pushed("gc2")

    assert len(ranges) == 5
    assert len({r.begin.tid for r in ranges}) == 2
    assert all(r.begin.depth == 0 and r.begin.tid == r.end.tid for r in ranges)


SERVER = """
import asyncio, tailwatch
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for i in range(4):
        body = b'{"object":"chat.completion.chunk","model":"llama","choices":[{"index":0,"delta":{"content":"x"}}]}'
        await send({"type": "http.response.body", "body": b"data: " + body + b"\\n\\n", "more_body": i < 3})
        await asyncio.sleep(0.001)
        if scope["headers"] and i == 1:
            raise RuntimeError
watch = tailwatch.install(app, gc="observe", nvtx_tokens=True)
async def ask(fails):
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
             "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"", "root_path": "",
             "headers": [(b"x", b"y")] if fails else [], "client": None, "server": None}
    async def receive():
        await asyncio.sleep(10)
    async def send(message):
        pass
    await watch.app(scope, receive, send)
async def main():
    await asyncio.gather(*(ask(i % 2) for i in range(10)), return_exceptions=True)
asyncio.run(main())
"""


def test_requests_of_an_app_overlap_and_end_as_they_do(watched) -> None:
    """Of ten streamed at once through an ASGI app half raise: ten ranges, ten first tokens in the category of their
    model and route, and each later message."""
    story = watched(SERVER)

    assert sorted(r.begin.payload for r in story.started("request")) == list(range(1, 11))
    firsts = story("mark", "first token")
    assert len(firsts) == 10
    assert {story.categories[e.category] for e in firsts} == {"llama /v1/chat/completions"}
    assert Counter(e.payload for e in story("mark", "token")).most_common()[0][1] == 3
    assert len(story("mark", "token")) == 5 * 3 + 5 * 1
