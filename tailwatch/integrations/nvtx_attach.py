"""Sends an NVTX tool (Nsight Systems, Nsight Compute) what this process does; the sending is C,
csrc/python/nvtx/ranges.h.

Whether a tool listens NVTX finds out once in a process, when it is first asked: here, unless ``nvtx`` is off.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

from tailwatch import _hot

ANCHOR_SECONDS = 10.0


class NVTXHook:
    """The NVTX side of one process.

    Args:
        core: what sends to the tool.
        mode: "auto", "on" (a note where no tool listens) or "off" (NVTX is not even asked).
        tokens: a mark for each message of tokens.
        note: called with a sentence for the doctor.
    """

    def __init__(self, core: _hot.Core, mode: str, tokens: bool, note: Callable[[str], object]) -> None:
        self._core = core
        self._note = note
        self.mode = mode
        self.tokens = tokens

    @property
    def attached(self) -> bool:
        """Whether a tool listens and is sent to."""
        return self._core.nvtx_attached

    def attach(self) -> None:
        """Begin to send, where a tool listens."""
        if self.mode == "off":
            return
        if self._core.nvtx(self.tokens):
            self.anchor()
            atexit.register(self.anchor)
        elif self.mode == "on":
            self._note(
                "nvtx is on, but no NVTX tool is attached to this process: start it under `nsys profile -t nvtx,...` "
                "or another tool; one that comes later is not seen"
            )

    def anchor(self) -> None:
        """Mark the clock, so that the tool's times can be converted to CLOCK_MONOTONIC. Now and then, by the daemon."""
        self._core.nvtx_anchor()

    def adopt(self, mode: str, tokens: bool) -> None:
        """Other options from now on."""
        if (mode, tokens) != (self.mode, self.tokens):
            self.detach()
            self.mode, self.tokens = mode, tokens
            self.attach()

    def detach(self) -> None:
        """Send nothing more; what is open still ends."""
        atexit.unregister(self.anchor)
        self._core.nvtx_anchor()
        self._core.nvtx_off()

    def after_fork(self) -> None:
        """In a child: another process, with a clock anchor of its own."""
        self._core.nvtx_anchor()
