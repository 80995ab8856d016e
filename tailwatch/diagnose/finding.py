"""What a rule finds, and what it may look at beside a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

SEVERITIES = ("high", "medium", "low", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing: which rule saw it, how bad it is, what it is in numbers, and what mends it.

    lateness: the lateness it explains, seconds summed over streams; 0.0: none, or it is not known.
    """

    rule: str
    severity: str
    title: str
    detail: str
    advice: str
    lateness: float = 0.0


@dataclass(frozen=True, slots=True)
class DiagnosisContext:
    """What a snapshot does not hold: how this process is set up. None: not known (a saved snapshot).

    Attributes:
        gc_policy: "freeze", "idle", "observe" or "off".
        gc_choice: with gc="auto", why the policy was chosen, a name in tailwatch.gc.capabilities.CHOICES; else "".
        gc_measured: with gc="auto", the mean wait for a pause under each policy that was tried, seconds.
        freeze_done: the heap was frozen at least once.
        freeze_wanted: one more was due, and no instant without a stream in flight came within 10 minutes.
        external_freezes: gc.freeze() calls by others that were seen.
        gc_enabled: gc.isenabled().
        thresholds: gc.get_threshold().
        python_version: sys.version_info[:3].
        unknown_environment: TAILWATCH_* variables that are no option.
        memory_bytes: what tailwatch keeps for its numbers at most, fixed at install.
        fast_sse: the option is on.
        accelerated: what it serialises for, dotted names.
        notes: further ones, a sentence each.
        started: a name in tailwatch.diagnose.advice.STARTED.
        healthy_concurrency: streams above which TTFT grows faster; None: not found.
        highest_concurrency: the most streams that were in flight at an arrival, in the last half hour.
        queued_seconds: what first tokens took beyond their median at the healthy concurrency, summed over the requests
            of the last half hour that found more streams.
        unseen_servers: loaded, and no ASGI servers; empty where the group stamps requests.
        unseen_ports: on which connections came, and no request was seen.
        uncounted_routes: those that streamed and are not counted, "GET /events".
        opened_before: requests that an earlier command had opened in the group's directory.
        logged: options of the log that are in force, by name: from how many milliseconds on they log; 1 of gc_log_all.
        model_engines: libraries that make tokens, loaded in the process.
        model_clients: libraries that ask other servers for tokens, loaded in it.
    """

    gc_policy: str | None = None
    gc_choice: str = ""
    gc_measured: Mapping[str, float] = field(default_factory=dict)
    freeze_done: bool | None = None
    freeze_wanted: bool = False
    external_freezes: int = 0
    gc_enabled: bool | None = None
    thresholds: tuple[int, ...] | None = None
    python_version: tuple[int, ...] | None = None
    unknown_environment: tuple[str, ...] = ()
    memory_bytes: int | None = None
    fast_sse: bool = False
    accelerated: tuple[str, ...] = ()
    notes: tuple[str, ...] | list[str] = ()
    started: str = "install"
    healthy_concurrency: float | None = None
    highest_concurrency: float = 0.0
    queued_seconds: float = 0.0
    unseen_servers: tuple[str, ...] = ()
    unseen_ports: tuple[int, ...] = ()
    uncounted_routes: tuple[str, ...] = ()
    opened_before: int = 0
    logged: Mapping[str, float] = field(default_factory=dict)
    model_engines: tuple[str, ...] = ()
    model_clients: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON, beside a saved snapshot: {"snapshot": ..., "context": ...}."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DiagnosisContext:
        """What as_dict() wrote; names that are not known are left out."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**values)
