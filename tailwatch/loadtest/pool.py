"""The connections to one server: taken, given back, opened when none is free."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tailwatch._hot import now
from tailwatch.loadtest.connection import Connection, Flight
from tailwatch.loadtest.exchange import Ending, Exchange

Done = Callable[[Exchange], None]

# Of connect(): they show that this client is at an end, not the server.
_OWN_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}


@dataclass(frozen=True)
class Target:
    """Where the server is. tls: None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


def tls_context(*, insecure: bool = False, ca_file: str | None = None) -> ssl.SSLContext:
    """For https: certificates are checked against the system's authorities or ca_file; insecure: not at all."""
    context = ssl.create_default_context(cafile=ca_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Pool:
    """Sends requests to one target, as many at once as it is asked to; each on a connection of its own (HTTP/1.1).

    A connection is reused when its answer has ended and both sides keep it. Where the server had closed it meanwhile
    the request is sent once more, on a new one, and keeps its planned time. No cap: a caller that needs one counts
    in_flight. All of it belongs to the thread of the event loop that runs when it is made.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout: float | None = None,
        deadlines_ns: tuple[int, int] = (0, 0),
        keep: bool = False,
        marked: bool = False,
        empty: bool = False,
    ) -> None:
        """timeout: seconds that an exchange may take from Pool.send() on; None: for ever.
        deadlines_ns: for the first token and each next one, for the fluidity; 0: none. keep: the first bytes of every
        body are kept in `head`. marked: the protocol ends an event stream with a marker of its own ([DONE],
        message_stop …): one that ends without it is TRUNCATED. empty: answers need no content."""
        self.in_flight = 0
        """Exchanges sent and not done."""
        self.opened = 0
        """Connections opened so far."""
        self.retries = 0
        """Requests sent again because their connection was stale."""
        self.deadlines_ns = deadlines_ns
        self.keep = keep
        self.marked = marked
        self.generates = marked and not empty
        self._target = target
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Connection, None] = {}  # in the order in which they became so
        self._open: set[Connection] = set()
        self._flights: set[Flight] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: list[str] = []
        self._resolving: asyncio.Task[list[str]] | None = None
        self._closed = False

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def send(self, exchange: Exchange, request: bytes, done: Done) -> None:
        """Send the bytes of one whole HTTP/1.1 request now. done(exchange) is called exactly once, from the loop and
        never from within this call, however it ends. Never raises, never blocks."""
        exchange.sent_ns = now()
        flight = Flight(exchange, request, done)
        self.in_flight += 1
        self._flights.add(flight)
        if self._timeout is not None:
            flight.timer = self._loop.call_later(self._timeout, self._time_out, flight)
        while self._idle:
            connection, _ = self._idle.popitem()  # the last one: it is the least likely to be stale
            if connection.usable:
                connection.begin(flight)
                return
        self._start(self._carry(flight), flight)

    async def warm(self, connections: int) -> int:
        """Open so many connections beforehand, and resolve the name; how many are open. Raises nothing."""
        wanted = connections - len(self._open)
        found = await asyncio.gather(*(self._connect() for _ in range(max(wanted, 0))), return_exceptions=True)
        self._idle.update((connection, None) for connection in found if isinstance(connection, Connection))
        return len(self._open)

    def close(self) -> None:
        """End what is in flight (ABANDONED; done is called for each, from within this call) and close all connections.

        What is sent afterwards is ABANDONED too."""
        self._closed = True
        for flight in list(self._flights):
            self._give_up(flight, Ending.ABANDONED, "the tester ended it")
        for task in list(self._tasks):
            task.cancel()
        if self._resolving is not None:
            self._resolving.cancel()
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    # ---- opening ----

    def _start(self, carrying: Coroutine[Any, Any, None], flight: Flight) -> None:
        task = self._loop.create_task(carrying)
        flight.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, flight: Flight) -> None:
        """On a connection of its own."""
        started = now()
        try:
            if self._closed:
                raise asyncio.CancelledError
            connection = await self._connect()
        except asyncio.CancelledError:
            self.settle(flight, Ending.ABANDONED, "the tester ended it", now())
        except Exception as error:  # whatever it is: an exchange that is never ended would hold up the run
            self.settle(flight, *_failure(error), now())
        else:
            flight.exchange.connect_ns += now() - started
            self._board(flight, connection)

    def _board(self, flight: Flight, connection: Connection) -> None:
        """On a connection that was just opened, and may be closed again."""
        if not connection.usable:
            self.settle(flight, Ending.RESET, "the server closed the connection before it was asked anything", now())
        elif flight.over:  # it ended while the last byte of the handshake was on its way
            self.idle(connection)
        else:
            connection.begin(flight)

    async def _connect(self) -> Connection:
        """A new connection. The address that answered last is tried first."""
        target = self._target
        addresses = self._addresses or await self._resolve()
        name = target.host if target.tls is not None else None
        failed: OSError | None = None
        for address in addresses:
            try:
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self), address, target.port, ssl=target.tls, server_hostname=name
                )
            except OSError as error:
                failed = failed or error
                continue
            self.opened += 1
            if address != self._addresses[0]:
                self._addresses = [address, *(other for other in addresses if other != address)]
            return connection
        assert failed is not None
        raise failed

    async def _resolve(self) -> list[str]:
        """Once: a run measures the server, not the resolver."""
        if _is_literal(self._target.host):
            self._addresses = [self._target.host]
            return self._addresses
        if self._resolving is None or (self._resolving.done() and not self._addresses):
            self._resolving = self._loop.create_task(self._look_up())
            self._resolving.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # if nothing waits any more
        self._addresses = await asyncio.shield(self._resolving)
        return self._addresses

    async def _look_up(self) -> list[str]:
        found = await self._loop.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    # ---- what a connection reports ----

    def connected(self, connection: Connection) -> None:
        """It is open; too late where the pool is closed."""
        self._open.add(connection)
        if self._closed:
            connection.abort()

    def idle(self, connection: Connection) -> None:
        """It is free for another request."""
        self._idle[connection] = None

    def gone(self, connection: Connection) -> None:
        """It is closed."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def again(self, flight: Flight) -> None:
        """The connection had been closed by the server: the request was never looked at."""
        self.retries += 1
        flight.exchange.retries += 1
        self._start(self._carry(flight), flight)

    def settle(self, flight: Flight, ending: Ending, error: str, end_ns: int) -> None:
        """The exchange has ended. The first end counts."""
        if flight.over:
            return
        flight.over = True
        flight.cancel = None
        if flight.timer is not None:
            flight.timer.cancel()
        self._flights.discard(flight)
        self.in_flight -= 1
        exchange = flight.exchange
        exchange.ending, exchange.error, exchange.end_ns = ending, error, end_ns
        flight.done(exchange)

    def _give_up(self, flight: Flight, ending: Ending, error: str) -> None:
        ended = now()
        if flight.cancel is not None:
            flight.cancel()
        self.settle(flight, ending, error, ended)

    def _time_out(self, flight: Flight) -> None:
        self._give_up(flight, Ending.TIMEOUT, f"no whole answer within {self._timeout:g} s")


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _failure(error: Exception) -> tuple[Ending, str]:
    """What it means that there is no connection."""
    if isinstance(error, ssl.SSLError):
        return Ending.TLS, f"TLS: {error}"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return Ending.REFUSED, f"the name does not resolve: {error}"
    if isinstance(error, OSError) and error.errno in _OWN_LIMITS:
        return Ending.LIMIT, f"this client cannot open more connections: {error}"
    return Ending.REFUSED, f"no connection: {str(error) or type(error).__name__}"
