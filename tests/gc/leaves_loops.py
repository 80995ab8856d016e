"""A process with a small heap, which installs the policy, uses a loop and uninstalls; for each line on its standard
input, a loop's kind and where uninstall() finds it, it prints what is left."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import sys
import threading
from typing import Any

import tailwatch


def ours_alive() -> list[str]:
    """Kinds of ours that the collector still sees."""
    gc.collect()
    kinds = {type(each).__name__ for each in gc.get_objects()}
    return sorted(kinds & {"Slicer", "IdleSelector", "IdleGC", "IdleSlots", "GCHook", "Watch"})


def installed(loop: Any, watch: Any) -> None:
    """A policy that is engaged, and uses this loop."""

    async def serve() -> None:
        with tailwatch.stream(model="m") as stream:
            stream.token()
            await asyncio.sleep(0.001)

    tailwatch.freeze()
    loop.run_until_complete(serve())
    assert watch.gc.idle_gc.loops.any_used


def left_by(new: Any, where: str) -> dict[str, Any]:
    """uninstall()'s report, kinds of ours that are alive before and after, and attributes of ours in the loop."""
    before = ours_alive()
    loop = new()
    selector = getattr(loop, "_selector", None)
    watch: Any = tailwatch.install(gc="idle")
    installed(loop, watch)
    assert selector is None or "select" in vars(selector)
    report: list[str] = []
    thread = threading.Thread(target=loop.run_forever) if where == "elsewhere" else None
    if where == "inside":

        async def leave() -> None:
            report.extend(tailwatch.uninstall())

        loop.run_until_complete(leave())
    elif where == "closed":
        loop.close()
    elif where == "gone":
        loop.close()
        loop = selector = None
        gc.collect()
    elif thread is not None:
        running = threading.Event()
        loop.call_soon(running.set)
        thread.start()
        assert running.wait()
    report += tailwatch.uninstall()
    watch = None
    if thread is not None:
        done = threading.Event()
        loop.call_soon_threadsafe(done.set)
        assert done.wait()
    after, attributes = ours_alive(), []
    if loop is not None:
        attributes += [name for name in ("close",) if name in vars(loop)]
        attributes += [name for name in ("select",) if selector is not None and name in vars(selector)]
        if thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        if where != "closed":
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
    return {"report": report, "before": before, "after": after, "attributes": attributes}


if __name__ == "__main__":
    for line in sys.stdin:
        kind, where = line.split()
        print(json.dumps(left_by(importlib.import_module(kind).new_event_loop, where)), flush=True)
