"""The client on one connection and its pool: what the rest of tailwatch.load stands on."""

from __future__ import annotations

from tailwatch.load.exchange import Ending, Exchange
from tailwatch.load.pool import Done, Pool, Target

__all__ = ["Done", "Ending", "Exchange", "Pool", "Target"]
