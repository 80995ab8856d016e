"""The client on one connection and its pool: what the rest of tailwatch.load stands on."""

from __future__ import annotations

from tailwatch.load.exchange import Ending, Exchange
from tailwatch.load.loops import new_event_loop
from tailwatch.load.pool import Done, Pool, Target, tls_context

__all__ = ["Done", "Ending", "Exchange", "Pool", "Target", "new_event_loop", "tls_context"]
