"""The connections to one server: taken, given back, opened when none is free."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from tailwatch.load.exchange import Exchange

Done = Callable[[Exchange], None]


@dataclass(frozen=True)
class Target:
    """Where the server is. tls: None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Pool:
    """Sends requests to one target, as many at once as it is asked to; each on a connection of its own (HTTP/1.1).

    A connection is reused when its answer has ended and both sides keep it. Where the server had closed it meanwhile the
    request is sent once more, on a new one, and keeps its planned time. No cap: who needs one counts in_flight.
    All of it belongs to the thread of its event loop.
    """

    in_flight: int
    """Exchanges sent and not done."""
    connections: int
    """Open, or being opened."""
    opened: int
    """Connections opened so far."""
    retries: int
    """Requests sent again because their connection was stale."""

    def __init__(
        self,
        target: Target,
        *,
        timeout: float | None = None,
        deadlines_ns: tuple[int, int] | None = None,
        keep: int = 0,
    ) -> None:
        """timeout: seconds that an exchange may take from Pool.send() on; None: for ever.
        deadlines_ns: for the first token and each next one, for the fluidity. keep: bytes of each body kept in `head`."""
        raise NotImplementedError

    async def warm(self, connections: int) -> int:
        """Opens so many connections beforehand, and resolves the name; how many are open. Raises nothing."""
        raise NotImplementedError

    def send(self, exchange: Exchange, request: bytes, done: Done) -> None:
        """Sends the bytes of one whole HTTP/1.1 request now. done(exchange) is called exactly once, from the loop and never
        from within this call, however it ends. Never raises, never blocks."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what is in flight (ABANDONED; done is called for each, from within this call) and closes all connections."""
        raise NotImplementedError
