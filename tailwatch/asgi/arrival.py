"""When a request reached this host: what it waited before any code of the app could see it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from tailwatch import _hot

TCP, ASGI, HEADER, GIVEN = range(4)  # tw_arrival
MAX_WAIT_NS = 60 * 10**9

_HEADERS = (b"x-request-start", b"x-queue-start")
_STAMP = re.compile(rb"\s*(?:t\s*=\s*)?(\d{1,19})(?:\.(\d{1,9})\d*)?\s*(?:[,;].*)?", re.DOTALL)
_YEAR_2000_S = 946_684_800
_UNITS_NS = ((10**17, 1), (10**14, 10**3), (10**11, 10**6), (0, 10**9))  # a stamp at least that large counts these
_HYPERCORN = ("__self__", "send", "__self__", "send", "__self__", "writer")


Arrival = tuple[int, int, int]
"""(arrival, proxy, source): monotonic ns, never after the app was entered; ns before it, by a proxy's header."""


class ArrivalClock:
    """Finds the arrival of each request. trust_request_start: believe X-Request-Start and X-Queue-Start."""

    __slots__ = ("_jiffy_ns", "_least_ns", "_trusts")

    def __init__(self, trust_request_start: bool = False) -> None:
        self._trusts = trust_request_start
        self._jiffy_ns = _hot.jiffy_ns()
        self._least_ns = 2 * self._jiffy_ns

    def arrival(self, scope: Any, receive: Any, send: Any, entry_ns: int) -> Arrival:
        """Of a request whose app was entered at entry_ns. What is not known reads as that."""
        waited = _hot.tcp_wait_ns(socket_of(receive, send))
        # the kernel counts jiffies, up to one too many: that one is taken off
        waited = waited - self._jiffy_ns if self._least_ns < waited <= MAX_WAIT_NS else 0
        if self._trusts:
            start = request_start(scope["headers"])
            if start is not None:
                proxy = time.time_ns() - waited - start
                return entry_ns - waited, min(max(proxy, 0), MAX_WAIT_NS), HEADER
        return entry_ns - waited, 0, TCP if waited else ASGI


def socket_of(receive: Any, send: Any) -> int:
    """File descriptor of the connection a request came by, -1 where the server does not show it.

    uvicorn: its receive is a method of what holds the transport. hypercorn: its send leads to the stream writer.
    """
    try:
        transport = getattr(getattr(receive, "__self__", None), "transport", None)
        if transport is None:
            transport = send
            for name in _HYPERCORN:
                transport = getattr(transport, name, None)
                if transport is None:
                    return -1
        if transport.is_closing():  # the number may already belong to another connection
            return -1
        descriptor: int = transport.get_extra_info("socket").fileno()
        return descriptor if type(descriptor) is int else -1
    except Exception:  # not the server it looked like
        return -1


def request_start(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Unix time in ns at which a proxy took the request, by X-Request-Start, else X-Queue-Start; None: not given.

    Seconds, milliseconds, microseconds or nanoseconds, by their magnitude, with or without `t=`; of several
    values the first. A time before the year 2000 is none.
    """
    found = {name: value for name, value in headers if name in _HEADERS}
    for name in _HEADERS:
        match = _STAMP.fullmatch(found[name]) if name in found else None
        if match:
            return _nanoseconds(int(match[1]), match[2] or b"0")
    return None


def _nanoseconds(whole: int, fraction: bytes) -> int | None:
    unit = next(unit for least, unit in _UNITS_NS if whole >= least)
    stamp = whole * unit + int(fraction) * unit // 10 ** len(fraction)
    return stamp if stamp >= _YEAR_2000_S * 10**9 else None
