"""A kernel of Triton's, which must stand in a file."""

from __future__ import annotations

import uuid
from typing import Any

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

NEVER_CACHED = uuid.uuid4().int & 0xFFFFFF  # a constant of the kernel: no cache of an earlier run has it


@triton.jit  # type: ignore[untyped-decorator]
def double(target, source, n, never_cached: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 64)
    tl.store(target + at, tl.load(source + at, mask=at < n) * 2, mask=at < n + never_cached * 0)


def doubled(torch: Any) -> list[float]:
    """Of 64 ones."""
    source = torch.ones(64, device="cuda")
    target = torch.zeros(64, device="cuda")
    double[(1,)](target, source, 64, NEVER_CACHED)
    found: list[float] = target.tolist()
    return found
