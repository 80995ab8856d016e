"""When a request arrived: the kernel's word, a trusted proxy's, and nonsense of either."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import _hot
from tailwatch.asgi import arrival
from tailwatch.asgi.arrival import ASGI, HEADER, TCP, ArrivalClock, request_start, socket_of

NOW_S = 1_700_000_000
NS = 10**9


class Transport:
    """What a server shows of its connection."""

    def __init__(self, connection: socket.socket | None, closing: bool = False) -> None:
        self.connection = connection
        self.closing = closing

    def is_closing(self) -> bool:
        """As asyncio's."""
        return self.closing

    def get_extra_info(self, name: str) -> socket.socket | None:
        """As asyncio's."""
        return self.connection if name == "socket" else None


class Uvicorn:
    """The shape of uvicorn's request cycle."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport

    async def receive(self) -> None:
        """A bound method, as uvicorn's."""

    async def send(self, message: Any) -> None:
        """A bound method, as uvicorn's."""


class Holder:
    """Something with a bound method `send`, that leads to the next."""

    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def hand(self, message: Any) -> None:
        """A bound method."""


async def unbound(*message: Any) -> None:
    """A receive or send that belongs to nothing."""


def waited(monkeypatch: pytest.MonkeyPatch, wait_ns: int, jiffy_ns: int = 4_000_000) -> tuple[int, int]:
    """The wait and the source that are reported when the kernel gives wait_ns."""
    monkeypatch.setattr(arrival._hot, "tcp_wait_ns", lambda descriptor: wait_ns)
    monkeypatch.setattr(arrival._hot, "jiffy_ns", lambda: jiffy_ns)
    with socket.socket() as connection:
        server = Uvicorn(Transport(connection))
        entry = _hot.now()
        at, proxy, source = ArrivalClock().arrival({"headers": []}, server.receive, server.send, entry)
    assert proxy == 0
    return entry - at, source


def test_socket_of_uvicorn() -> None:
    """uvicorn's receive is bound to what holds the transport."""
    with socket.socket() as connection:
        server = Uvicorn(Transport(connection))
        assert socket_of(server.receive, server.send) == connection.fileno()


def test_socket_of_hypercorn() -> None:
    """hypercorn's send leads through stream and protocol to the server's writer."""
    with socket.socket() as connection:
        server = Holder("writer", Transport(connection))
        protocol = Holder("send", server.hand)
        stream = Holder("send", protocol.hand)
        assert socket_of(unbound, stream.hand) == connection.fileno()


@pytest.mark.parametrize("transport", [Transport(None), object(), None, 7])
def test_socket_of_others_is_none(transport: object) -> None:
    """A server that does not show its socket, in whatever way, gives none."""
    server = Uvicorn(transport)
    assert socket_of(server.receive, server.send) == -1
    assert socket_of(unbound, unbound) == -1
    assert socket_of(None, None) == -1


def test_socket_of_a_closing_connection_is_none() -> None:
    """The number of a closed descriptor may belong to another connection by now."""
    with socket.socket() as connection:
        server = Uvicorn(Transport(connection, closing=True))
        assert socket_of(server.receive, server.send) == -1


def test_wait_is_a_jiffy_less_than_the_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts ticks, which may be one too many: what is reported is never too long."""
    assert waited(monkeypatch, 400_000_000) == (396_000_000, TCP)


@pytest.mark.parametrize("wait_ns", [-1, 0, 4_000_000, 8_000_000, 60 * NS + 1, 2**31 * 1_000_000])
def test_no_wait_worth_the_name(monkeypatch: pytest.MonkeyPatch, wait_ns: int) -> None:
    """Up to two jiffies an idle server would be charged for the kernel's clock; over a minute is nonsense."""
    assert waited(monkeypatch, wait_ns) == (0, ASGI)


def test_longest_wait_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of a minute still counts."""
    assert waited(monkeypatch, 60 * NS) == (60 * NS - 4_000_000, TCP)


def test_wait_of_a_real_connection() -> None:
    """Data that lies in the kernel for 60 ms makes an arrival that long ago, less two ticks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as connection:
            before = time.monotonic_ns()
            client.sendall(b"x")
            sent = time.monotonic_ns()
            while time.monotonic_ns() < sent + 60_000_000:
                time.sleep(0.005)
            server = Uvicorn(Transport(connection))
            entry = _hot.now()
            found = ArrivalClock().arrival({"headers": []}, server.receive, server.send, entry)
            later = _hot.now() - entry  # the kernel was asked then
    assert found[2] == TCP
    assert before - later <= found[0] <= sent + 2 * _hot.jiffy_ns()


def test_sockets_that_are_not_tcp() -> None:
    """A unix socket has no TCP_INFO: the app's entry is the arrival."""
    left, right = socket.socketpair()
    with left, right:
        server = Uvicorn(Transport(left))
        assert ArrivalClock().arrival({"headers": []}, server.receive, server.send, 5 * NS) == (5 * NS, 0, ASGI)


@pytest.mark.parametrize(
    ("header", "expected_ns"),
    [
        (b"1700000000123", NOW_S * NS + 123_000_000),  # Heroku: milliseconds
        (b"t=1700000000.123", NOW_S * NS + 123_000_000),  # nginx: seconds
        (b"1700000000.123", NOW_S * NS + 123_000_000),
        (b"t=1700000000123456", NOW_S * NS + 123_456_000),  # Apache, New Relic: microseconds
        (b"t=1700000000123.25", NOW_S * NS + 123_250_000),
        (b"1700000000123456789", NOW_S * NS + 123_456_789),  # nanoseconds
        (b"t=1700000000", NOW_S * NS),
        (b" t = 1700000000.5 ", NOW_S * NS + 500_000_000),
        (b"t=1700000000.5, t=1700000001.5", NOW_S * NS + 500_000_000),  # two proxies: the first took it first
        (b"1700000000.1234567891234", NOW_S * NS + 123_456_789),
    ],
)
def test_formats_of_request_start(header: bytes, expected_ns: int) -> None:
    """Every format in the wild is read, distinguished by magnitude."""
    assert request_start([(b"host", b"x"), (b"x-request-start", header)]) == expected_ns
    assert request_start([(b"x-queue-start", header)]) == expected_ns


@pytest.mark.parametrize(
    "header",
    [b"", b"t=", b"nan", b"inf", b"-1700000000", b"t=-5", b"1_700_000_000", b"1e9", b"0", b"12", b"t=900000000",
     b"17000000000000000000000", b"0x65", b"1700000000 1", "١٧٠٠٠٠٠٠٠٠".encode(), b"\xff\xfe", b"t=t=1700000000"],
)  # fmt: skip
def test_nonsense_in_request_start_is_no_time(header: bytes) -> None:
    """What is no number, or a time before the year 2000, does not count."""
    assert request_start([(b"x-request-start", header)]) is None


def test_request_start_comes_before_queue_start() -> None:
    """Where both are there, X-Request-Start counts; where it is nonsense, the other."""
    later = (b"x-queue-start", b"1700000007")
    assert request_start([later, (b"x-request-start", b"1700000001")]) == (NOW_S + 1) * NS
    assert request_start([later, (b"x-request-start", b"?")]) == (NOW_S + 7) * NS


@given(st.binary(max_size=40))
def test_any_header_is_survived(header: bytes) -> None:
    """No bytes raise, and what comes out is a time after the year 2000."""
    found = request_start([(b"x-request-start", header)])
    assert found is None or found >= 946_684_800 * NS


def proxied(monkeypatch: pytest.MonkeyPatch, ahead_ns: int, *, trust: bool = True) -> arrival.Arrival:
    """The arrival of a request that a proxy took ahead_ns before now, by the wall clock."""
    monkeypatch.setattr(arrival.time, "time_ns", lambda: NOW_S * NS)
    headers = [(b"x-request-start", b"%d" % (NOW_S * NS - ahead_ns))]
    return ArrivalClock(trust).arrival({"headers": headers}, unbound, unbound, 77 * NS)


def test_proxy_time_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trusted proxy adds is a stage of its own: the arrival stays where it was."""
    assert proxied(monkeypatch, 250_000_000) == (77 * NS, 250_000_000, HEADER)


def test_proxy_in_the_future_reads_as_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks differ: a proxy ahead of us adds nothing, and nothing negative."""
    assert proxied(monkeypatch, -(10**10)) == (77 * NS, 0, HEADER)


def test_proxy_wait_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No header makes a wait of more than a minute."""
    assert proxied(monkeypatch, 3600 * NS) == (77 * NS, 60 * NS, HEADER)


def test_headers_are_not_trusted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client can send the header: without trust_request_start it is not looked at."""
    assert proxied(monkeypatch, 250_000_000, trust=False) == (77 * NS, 0, ASGI)


def test_proxy_time_ends_where_the_kernels_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both, the proxy's share is what lay before the arrival at this host."""
    monkeypatch.setattr(arrival._hot, "tcp_wait_ns", lambda descriptor: 104_000_000)
    monkeypatch.setattr(arrival._hot, "jiffy_ns", lambda: 4_000_000)
    monkeypatch.setattr(arrival.time, "time_ns", lambda: NOW_S * NS)
    headers = [(b"x-request-start", b"%d" % (NOW_S * NS - 250_000_000))]
    with socket.socket() as connection:
        server = Uvicorn(Transport(connection))
        found = ArrivalClock(True).arrival({"headers": headers}, server.receive, server.send, 77 * NS)
    assert found == (77 * NS - 100_000_000, 150_000_000, HEADER)
