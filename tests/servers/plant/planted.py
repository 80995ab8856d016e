"""The test's own hands in each process of a server: it does what a file asks, and keeps a log of its own.

An order is a line in the pipe ``PID.do`` of the directory, the answer is ``PID.NUMBER.done``. Each pause is timed here
by the clock alone, without tailwatch, from outside: the calls between the two times are made in C, so that no other
thread can get the GIL in between. What an app under uvicorn streams is stamped where it reaches uvicorn: ``PID.sent``,
a line a response.
Methods of a server's engine, worker and API process can be asked to sleep once (METHODS).
"""

from __future__ import annotations

import contextlib
import gc
import json
import operator
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any

from at_import import AtImport

PIECE, REFERENCES = 1000, 4
SLEEP_SECONDS = 0.4  # of a method
STALL_SECONDS = 0.4  # of a stall whose length can be chosen
HELD = 23  # see tailwatch.demo.plants: some tenths of a second at a time
_SGLANG, _BATCHING = "sglang.srt.managers", "transformers.generation.continuous_batching"
METHODS = (  # module, class, method
    ("vllm.v1.core.sched.scheduler", "Scheduler", "schedule"),
    ("vllm.v1.worker.worker_base", "WorkerWrapperBase", "execute_model"),
    ("vllm.v1.engine.output_processor", "OutputProcessor", "process_outputs"),
    (f"{_SGLANG}.scheduler", "Scheduler", "get_next_batch_to_run"),
    (f"{_SGLANG}.tp_worker", "TpModelWorker", "forward_batch_generation"),
    (f"{_SGLANG}.detokenizer_manager", "DetokenizerManager", "handle_batch_token_id_out"),
    (f"{_SGLANG}.tokenizer_manager", "TokenizerManager", "_handle_batch_output"),
    (f"{_BATCHING}.scheduler", "FIFOScheduler", "schedule_batch"),
    (f"{_BATCHING}.continuous_api", "ContinuousBatchingManager", "_generation_step"),
    (f"{_BATCHING}.continuous_api", "OutputRouter", "deliver_batch"),
    ("transformers.cli.serving.utils", "CBStreamer", "put"),
)

_heap: list[Any] = []
_loops: list[Any] = []
_sleeps: dict[str, Log] = {}  # of a method that is to sleep: when it began to, was half through, ended


class Log(list[Any]):
    """A list that others wait for without looking at it every now and then: that would take the interpreter lock."""

    def __init__(self) -> None:
        super().__init__()
        self._longer = threading.Condition()

    def append(self, item: Any) -> None:
        """As of any list."""
        with self._longer:
            super().append(item)
            self._longer.notify_all()

    def wait_for(self, count: int) -> None:
        """Until it has so many."""
        with self._longer:
            self._longer.wait_for(lambda: len(self) >= count)


def begin(directory: str) -> None:
    """Listen for orders in this process and in its fork children, and stamp what uvicorn is given."""
    listen(directory)
    os.register_at_fork(after_in_child=lambda: listen(directory))
    at_import = {name: partial(_let_sleep, name) for name, _, _ in METHODS}
    at_import["uvicorn.config"] = partial(_stamp, directory)
    if os.environ.get("PLANT_ASYNC_SCHEDULING"):
        at_import["vllm.platforms.cpu"] = _keep_async_scheduling
    sys.meta_path.insert(0, AtImport(at_import))


def listen(directory: str) -> None:
    """Take orders for this process, on a thread."""
    threading.Thread(target=_listen, args=(os.path.join(directory, str(os.getpid())),), daemon=True).start()


def _listen(mine: str) -> None:
    with contextlib.suppress(FileExistsError):  # the process has become another program
        os.mkfifo(f"{mine}.do")
    with os.fdopen(os.open(f"{mine}.do", os.O_RDWR)) as pipe:  # also for writing: so it does not end
        for line in iter(pipe.readline, ""):
            threading.Thread(target=_obey, args=(mine, json.loads(line)), daemon=True).start()  # another may follow


def _obey(mine: str, order: dict[str, Any]) -> None:
    try:
        answer = _ORDERS[order["what"]](order["amount"])
    except Exception as error:
        answer = {"error": repr(error)}
    done = f"{mine}.{order['number']}"
    with open(f"{done}.new", "w") as file:
        json.dump(answer, file)
    os.rename(f"{done}.new", f"{done}.done")


def _build(objects: float) -> dict[str, Any]:
    """So many objects, a little at a time. Each refers to others anywhere in memory, as those of a program do: a
    collection waits for memory with each."""
    for _ in range(int(objects) // PIECE):
        others = iter(random.choices(_heap or [None], k=PIECE * REFERENCES))
        _heap.extend([list(islice(others, REFERENCES)) for _ in range(PIECE)])
        time.sleep(0)
    return {"objects": gc.get_freeze_count()}


def _drop(_: float) -> dict[str, Any]:
    """The reverse, as gently."""
    while _heap:
        del _heap[-PIECE:]
        time.sleep(0)
    return {}


def _collect(generation: float) -> dict[str, Any]:
    """One collection, timed from outside; and how long this thread was runnable meanwhile, and did not run."""
    now = time.monotonic_ns
    before = _run_delay()
    start, _, stop = tuple(map(operator.call, (now, partial(gc.collect, int(generation)), now)))
    return {"start": start, "stop": stop, "waited": _run_delay() - before}


def _run_delay() -> int:
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
        return int(file.read().split()[1])


def _block(seconds: float) -> dict[str, Any]:
    """The event loop stands still; no collection has to do with it."""
    done = Log()

    def stand() -> None:
        done.append(time.monotonic_ns())
        time.sleep(seconds)
        done.append(time.monotonic_ns())

    _loops[-1].call_soon_threadsafe(stand)
    done.wait_for(2)
    return {"start": done[0], "stop": done[1]}


def _prepare(name: str) -> dict[str, Any]:
    """What such a stall needs to be there before."""
    from tailwatch.demo import plants

    plants.prepare(name)
    return {}


def _stall(name: str) -> dict[str, Any]:
    """A stall of tailwatch's demo on the event loop; in a process without one, on this thread."""
    from tailwatch.demo import plants

    plants.LENGTH, plants.HELD, plants.log = STALL_SECONDS, HELD, Log()
    if _loops:
        _loops[-1].call_soon_threadsafe(plants.run, name)
    else:
        plants.run(name)
    plants.log.wait_for(1)
    _, start, stop = plants.log.pop()
    return {"start": start, "stop": stop}


def _sleep(method: str) -> dict[str, Any]:
    """The next call of that method sleeps first; that is half over."""
    times = _sleeps[method] = Log()
    times.wait_for(2)
    return {"start": times[0]}


def _slept(method: str) -> dict[str, Any]:
    """The end of that."""
    times = _sleeps[method]
    times.wait_for(3)
    return {"start": times[0], "stop": times[2]}


_ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "build": _build,
    "drop": _drop,
    "collect": _collect,
    "block": _block,
    "prepare": _prepare,
    "stall": _stall,
    "sleep": _sleep,
    "slept": _slept,
}


def _let_sleep(name: str, module: Any) -> None:
    for place, owner, method in METHODS:
        if place == name:
            home = getattr(module, owner)
            setattr(home, method, _sleeping(method, getattr(home, method)))


def _sleeping(method: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        times = _sleeps.get(method)
        if times is not None and not times:
            times.append(time.monotonic_ns())
            for _ in range(2):
                time.sleep(SLEEP_SECONDS / 2)
                times.append(time.monotonic_ns())
        return original(*args, **kwargs)

    return call


def _keep_async_scheduling(module: Any) -> None:
    """vLLM's CPU platform switches asynchronous scheduling off, as it has no use for it."""
    check = module.CpuPlatform.check_and_update_config.__func__

    def checked(cls: Any, config: Any) -> None:
        before = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = before

    module.CpuPlatform.check_and_update_config = classmethod(checked)


def _stamp(directory: str, module: Any) -> None:
    """Around whatever ``Config.load`` of uvicorn leaves to be served, outside of all others."""
    load = module.Config.load

    def loaded(config: Any) -> Any:
        result = load(config)
        config.loaded_app = stamped(config.loaded_app, directory)
        return result

    module.Config.load = loaded


App = Callable[[Any, Any, Any], Awaitable[None]]


def stamped(app: App, directory: str) -> App:
    """An app whose streams are written down: when each message reached uvicorn, and what it was."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        if not _loops:
            import asyncio

            _loops.append(asyncio.get_running_loop())
        if (b"x-narrow", b"1") in scope["headers"]:
            _narrow(send)
        arrival = time.monotonic_ns()
        await app(scope, receive, _Stamping(send, directory, scope, arrival))

    return serve


class _Stamping:
    """A send() as uvicorn's: tailwatch reads its flow control off what the method is bound to."""

    def __init__(self, send: Any, directory: str, scope: Any, arrival: int) -> None:
        self._send = send
        self._messages: list[tuple[int, bytes]] = []
        self._write_down = partial(_write_down, directory, scope, arrival, self._messages)
        self.__self__ = getattr(send, "__self__", None)

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self._messages.append((time.monotonic_ns(), message.get("body", b"")))
            if not message.get("more_body"):
                self._write_down()
        await self._send(message)


def _narrow(send: Any) -> None:
    """uvicorn's own send(): what its client does not read does not fit into a large buffer."""
    import socket

    connection = send.__self__.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def _write_down(directory: str, scope: Any, arrival: int, messages: list[tuple[int, bytes]]) -> None:
    name = dict(scope["headers"]).get(b"x-request-id", b"").decode()
    line = {"id": name, "arrival": arrival, "messages": [(at, bytes(body).decode()) for at, body in messages]}
    with open(os.path.join(directory, f"{os.getpid()}.sent"), "a") as file:
        file.write(json.dumps(line) + "\n")
