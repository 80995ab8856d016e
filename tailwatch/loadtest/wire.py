"""The client on one connection and its pool: what the rest of tailwatch.loadtest stands on."""

from __future__ import annotations

from tailwatch.loadtest.event_loop import new_event_loop
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.pool import Done, Pool, Target, tls_context

__all__ = ["Done", "Ending", "Exchange", "Pool", "Target", "new_event_loop", "tls_context"]
