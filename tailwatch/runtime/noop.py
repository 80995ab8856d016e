"""What stream() and step() give after uninstall(): it takes all and keeps nothing, and the host goes on unchanged."""

from __future__ import annotations

import time


class NoopStream:
    """A stream that nothing reads. The methods of `Stream`; all numbers are zero or None."""

    __slots__ = ("arrival_ns", "closed")

    tokens = worst_gap_ns = overlap_ns = delay_ns = last_ns = 0
    ttft_ns: int | None = None

    def __init__(self, arrival_ns: int | None = None) -> None:
        self.arrival_ns = time.monotonic_ns() if arrival_ns is None else arrival_ns
        self.closed = False

    def token(self, n: int = 1, *, at: int | None = None, choice: int = 0) -> None:
        """Nothing."""

    def usage(self, tokens: int) -> None:
        """Nothing."""

    def status(self, code: int) -> None:
        """Nothing."""

    def bind(self, engine: str | int | None, *, part: bool = False) -> None:
        """Nothing."""

    def label(self, model: str, route: str) -> None:
        """Nothing."""

    def received(self, key: int, received: int, processed: int, /) -> None:
        """Nothing."""

    def record_send_wait(self, since: int, until: int) -> None:
        """Nothing."""

    def summary(self) -> None:
        """Nothing."""

    def close(self, *, at: int | None = None) -> None:
        """It is closed from now on."""
        self.closed = True

    fail = timeout = abort = close

    def end(self, error: BaseException | type[BaseException] | None, /) -> None:
        """It is closed from now on."""
        self.closed = True


class NoopStep:
    """A step that nothing counts. The attributes of `Step`."""

    __slots__ = ("batch", "name", "waiting")

    def __init__(self, name: str, batch: int = 1, waiting: int | None = None) -> None:
        self.name = name
        self.batch = batch
        self.waiting = waiting

    def __enter__(self) -> NoopStep:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing."""
