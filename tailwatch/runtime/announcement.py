"""The line at INFO with which a server begins, the one with which its engine's steps do, once per group, and one for
each route that streams and is not counted.

The daemon logs them, a second after it started: by then the processes of a server have joined their group.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from tailwatch.asgi.metrics_route import MOVED_PATH, has_route
from tailwatch.asgi.routes import Routes
from tailwatch.group.membership import GroupMember
from tailwatch.options.config import Config
from tailwatch.platform import VERSION
from tailwatch.snapshots.directory_access import disk_of
from tailwatch.snapshots.model import Process
from tailwatch_boot import own_notes

_ON_A_DISK = (
    "tailwatch: dir=%r is on a disk (%s), to which each process writes a copy of its numbers every 5 s: "
    "name a directory under /dev/shm"
)

logger = logging.getLogger("tailwatch")


class AnnouncedProcess(Protocol):
    """What is read of a Watch."""

    config: Config
    automatic: bool
    app: Any
    membership: GroupMember
    routes: Routes

    @property
    def accelerated(self) -> tuple[str, ...]:
        """What ``fast_sse`` serialises for."""


class Announcement:
    """policy: gives the policy of the collector in force. steps: the engine's methods that are counted."""

    def __init__(
        self, source: AnnouncedProcess, policy: Callable[[], str], steps: Callable[[], tuple[str, ...]]
    ) -> None:
        self._source = source
        self._policy = policy
        self._steps = steps
        self._counted: tuple[str, ...] = ()
        self._looked = False
        self._named = 0

    def turn(self) -> None:
        """Log what is new. Called once a second, by the daemon."""
        source = self._source
        if not self._looked and (source.app is not None or not source.automatic):
            self._looked = True
            self._begin(*self._processes())
        if (steps := self._steps()) != self._counted:
            self._counted = steps
            own, _ = self._processes()
            if own.index == 0 and not source.config.quiet:
                logger.info("tailwatch: %s counts the engine's steps: %s", own.name, ", ".join(steps))
        self._name_routes()

    def _name_routes(self) -> None:
        found = self._source.routes.uncounted[self._named :]
        self._named += len(found)
        for method, path in found:
            if not self._source.config.quiet:
                logger.info("tailwatch: %s %s streams, and is not counted: routes=%s counts it", method, path, path)
            if directory := self._source.membership.directory:
                with contextlib.suppress(OSError):
                    own_notes.note(directory, "route", f"{method} {path}")

    def _begin(self, own: Process, others: list[Process]) -> None:
        if own.index or self._source.config.quiet or (others and self._source.app is None):
            return
        logger.info("%s", self._line(own, others))
        if disk := disk_of(self._source.membership.directory):
            logger.warning(_ON_A_DISK, self._source.membership.directory, disk)

    def _processes(self) -> tuple[Process, list[Process]]:
        """This one, and the living others of its group."""
        living = [each for each in self._source.membership.take().processes if each.lives]
        own = next((each for each in living if each.pid == os.getpid()), living[0])
        return own, [each for each in living if each is not own]

    def _line(self, own: Process, others: list[Process]) -> str:
        names = sorted(each.name for each in others if each.role != own.role)
        parts = [f"tailwatch {VERSION} watches {' with '.join([own.name, ', '.join(names)] if names else [own.name])}"]
        parts += [f"metrics: {self._metrics()}", f"changed: {self._changed()}"]
        directory = self._source.membership.directory
        parts += [f"group: {directory}"] if directory else []
        return "; ".join([*parts, f"late tokens: {self._question(directory)}"])

    def _metrics(self) -> str:
        config, app = self._source.config, self._source.app
        places = [f"port {config.metrics_port} of the loopback address"] if config.metrics_port and app is None else []
        if app is not None and config.metrics_path:
            taken = has_route(app, config.metrics_path)
            places += [f"{config.metrics_path}, after the app's own"] if taken and config.metrics_append else []
            places += [MOVED_PATH if taken else config.metrics_path]
        return " and ".join(places) or "not served (metrics_path=, metrics_port=)"

    def _changed(self) -> str:
        asked, policy = self._source.config.gc, self._policy()
        if policy in ("off", "observe"):
            collector = ""
        else:
            collector = f"gc={asked}" + (f" (now {policy})" if policy != asked else "")
        streams = f"fast_sse ({len(self._source.accelerated)} classes)" if self._source.accelerated else ""
        return ", ".join(filter(None, (collector, streams))) or "nothing"

    def _question(self, directory: str) -> str:
        if directory:
            return f"tailwatch why --dir {directory}"
        return "tailwatch why http://127.0.0.1:PORT" if self._source.app is not None else "tailwatch.why() in it"
