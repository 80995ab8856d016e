"""One quiet thread for everything that is neither stamping nor serving: logs, history, checks.

With an app it is started by the app's start-up or the first request, not by install(), so that a server may fork
first; without an app by install(). A fork child starts its own. It wakes four times a second, does little under the
GIL and never raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

WAKE_SECONDS = 0.25

logger = logging.getLogger("tailwatch")


@dataclass(slots=True)
class Task:
    """Something done every so many seconds (monotonic), first one period after the start."""

    run: Callable[[], object]
    every: float
    due: float = 0.0


@dataclass(slots=True)
class Daemon:
    """Runs tasks in one thread. ``failed`` is called for each one that raised; the first failure is logged."""

    tasks: list[Task]
    failed: Callable[[], None]
    _stop: threading.Event = field(default_factory=threading.Event)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _logged: bool = False

    def start(self) -> bool:
        """Start the thread unless it runs, or was stopped. Cheap: one attribute. Never raises. Returns whether this
        call has started it."""
        if self._thread is not None or self._stop.is_set():
            return False
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._start()
                return self._thread is not None
        return False

    def _start(self) -> None:
        for task in self.tasks:
            task.due = time.monotonic() + task.every
        thread = threading.Thread(target=self._loop, name="tailwatch", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            self.failed()
        else:
            self._thread = thread

    def stop(self) -> None:
        """End the thread for good and wait for it, two seconds at most."""
        with self._starting:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def forget(self) -> None:
        """In a fork child: the thread stayed with the parent."""
        stopped = self._stop.is_set()
        self._thread, self._starting, self._stop = None, threading.Lock(), threading.Event()
        if stopped:
            self._stop.set()

    @property
    def running(self) -> bool:
        """Whether the thread was started in this process."""
        return self._thread is not None

    def _loop(self) -> None:
        stop = self._stop
        while not stop.wait(WAKE_SECONDS):
            now = time.monotonic()
            for task in self.tasks:
                if now >= task.due:
                    task.due = now + task.every
                    self._run(task)

    def _run(self, task: Task) -> None:
        try:
            task.run()
        except Exception:
            self.failed()
            if not self._logged:
                self._logged = True
                logger.exception("tailwatch: a background task failed; the error is counted and the task runs again")
