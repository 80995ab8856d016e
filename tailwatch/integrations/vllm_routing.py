"""vLLM with several engines: its client in the API process chooses one for each request.

Read in 0.33.0. Apart from vllm.py, which imports the encoders.
"""

from __future__ import annotations

from tailwatch.integrations.request_routing import Choice


def _rank(identity: bytes) -> int | None:
    """Engines are addressed by their data parallel rank, as two bytes."""
    return int.from_bytes(identity, "little") if isinstance(identity, bytes) and len(identity) == 2 else None


# The second is the first's subclass, and chooses itself: by load, or as X-data-parallel-rank says.
CHOICES = tuple(
    Choice("vllm.v1.engine.core_client", owner, "get_core_engine_for_request", _rank)
    for owner in ("DPAsyncMPClient", "DPLBAsyncMPClient")
)
