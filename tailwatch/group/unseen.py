"""What a group's processes and ``tailwatch run`` found of requests that are not seen: servers that are no ASGI servers,
routes that stream and are not counted, ports on which connections came.

tailwatch_boot.own_notes writes them, a file per process. The connections are read off /proc: no process reports them
where requests are not seen.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailwatch import snapshots
from tailwatch_boot import own_notes

_MOST_BYTES = 1 << 20
_LISTEN, _SYN_RECEIVED, _TIME_WAIT = "0A", "03", "06"  # as include/net/tcp_states.h has them
_MAPPED = "0000000000000000FFFF0000"  # an address of IPv4, as one of IPv6
_LOOPBACKS = ("00000000000000000000000001000000",)
_KINDS = ("server", "route", "port", "app", "alone", "opened", "front")  # of own_notes.note()
_GENERAL = "werkzeug"  # Flask imports it, whatever server runs it


@dataclass(frozen=True, slots=True)
class Unseen:
    """servers: their names. routes: "GET /path". ports: on which connections came. pids: of living processes with a
    server. unwatched: an ASGI app could not be watched, or a process could not join, and it has logged why; then no
    server and no port is named, since the reason is known. opened, fronts: what an earlier command left in a directory
    that stays: streams, and files of processes that stamped."""

    servers: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    unwatched: bool = False
    opened: int = 0
    fronts: tuple[str, ...] = ()

    def is_stamped(self, directory: str) -> bool:
        """Whether requests are stamped in a group, or were since this command began: a process has an app, or opened a
        stream. False where it cannot be read."""
        opened, fronts = snapshots.stamped_in(directory) or (0, set())
        return opened > self.opened or not fronts <= set(self.fronts)


def read(directory: str) -> Unseen:
    """What stands in a directory; nothing where it cannot be read."""
    found: dict[str, dict[str, None]] = {kind: {} for kind in _KINDS}
    pids = []
    for pid, line in _lines(directory):
        kind, _, value = line.partition(" ")
        if kind in found and value.isprintable():
            found[kind][value] = None
            pids += [pid] if kind == "server" and pid else []
    routes, fronts = tuple(found["route"]), tuple(found["front"])
    opened = min((int(number) for number in found["opened"] if number.isdecimal()), default=0)
    if found["app"] or found["alone"]:
        return Unseen(routes=routes, unwatched=True, opened=opened, fronts=fronts)
    servers = list(found["server"])
    if len(servers) > 1:
        servers = [name for name in servers if not name.startswith(_GENERAL)]
    ports = tuple(int(port) for port in found["port"] if port.isdecimal())
    return Unseen(tuple(servers), routes, ports, tuple(dict.fromkeys(pids)), opened=opened, fronts=fronts)


def _lines(directory: str) -> Iterator[tuple[int, str]]:
    """Pid and line; 0 for a process that has ended, or is of another PID namespace. An empty file is of one that found
    no room to write why it could not join."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        if match := own_notes.NAME.fullmatch(name):
            pid = int(match[1]) if _lives(*map(int, match.groups())) else 0
            for line in (_text(os.path.join(directory, name)) or "alone ?").splitlines():
                yield pid, line


def _lives(pid: int, start: int, namespace: int) -> bool:
    try:
        return namespace == own_notes.namespace() and own_notes.start_of(pid) == start
    except OSError:
        return False


def _text(path: str) -> str:
    """What stands in it; a line of no kind where it must not be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "?"
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return "?"
        return os.read(file, _MOST_BYTES).decode(errors="replace")
    finally:
        os.close(file)


class Connections:
    """Connections from elsewhere to the ports on which processes listen."""

    def __init__(self) -> None:
        self.listening: set[int] = set()
        """Ports, all that were found so far."""
        self.others = False
        """Whether a process of another user listens on one: it cannot join a group of ours."""
        self._table = "/proc/self/net"

    def look(self, pids: Iterable[int]) -> set[int]:
        """Ports to which connections are open, or were closed within the last minute, not counting those between the
        processes themselves. pids: their first ones; descendants are found. Those that have ended leave their ports."""
        sockets: dict[int, set[str]] = {}
        for pid in pids:
            for each in _descendants(pid):
                sockets[each] = own = _sockets(each)
                self._table = f"/proc/{each}/net" if own and _is_elsewhere(each) else self._table
        own = set().union(*sockets.values())
        rows = [row for name in ("tcp", "tcp6") for row in _rows(f"{self._table}/{name}")]
        listening = {row.inode: _port(row.local) for row in rows if row.state == _LISTEN and row.inode in own}
        self.listening |= set(listening.values())
        self.others |= any(_is_of_another(pid) for pid, own in sockets.items() if own & listening.keys())
        ours = {row.local for row in rows if row.inode in own and row.state != _LISTEN}
        return {port for row in rows if (port := self._reached(row, ours)) is not None}

    def _reached(self, row: _Row, ours: set[str]) -> int | None:
        """The port that a row shows a connection to."""
        if row.state in (_LISTEN, _SYN_RECEIVED):
            return None
        if _port(row.local) in self.listening:
            return None if row.remote in ours else _port(row.local)
        host = row.remote.partition(":")[0]
        here = host == row.local.partition(":")[0] or host in _LOOPBACKS or (len(host) == 8 and host.endswith("7F"))
        return _port(row.remote) if row.state == _TIME_WAIT and here and _port(row.remote) in self.listening else None


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of /proc/net/tcp; addresses in its hexadecimal digits."""

    local: str
    remote: str
    state: str
    inode: str


def _rows(path: str) -> list[_Row]:
    try:
        with open(path, encoding="ascii") as file:
            fields = [line.split() for line in file]
    except OSError:
        return []
    return [_Row(_plain(each[1]), _plain(each[2]), each[3], each[9]) for each in fields[1:] if len(each) > 9]


def _plain(address: str) -> str:
    return address.removeprefix(_MAPPED)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _is_of_another(pid: int) -> bool:
    """Whether a process runs as another user than we: not by the owner of its /proc, root's once it has dropped."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            users = next(line.split() for line in file if line.startswith("Uid:"))
        return int(users[2]) != os.geteuid()
    except OSError:
        return False


def _is_elsewhere(pid: int) -> bool:
    """Whether a process has another network namespace than we: after its end nothing can be read there."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _descendants(pid: int) -> Iterator[int]:
    """A process and those that it started, as far as they have not been orphaned."""
    yield pid
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                children = file.read().split()
            for child in children:
                yield from _descendants(int(child))
