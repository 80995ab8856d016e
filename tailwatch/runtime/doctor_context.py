"""What the doctor needs beside the numbers of a process: its policy, how it was started, what it has loaded."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from tailwatch.diagnose.finding import DiagnosisContext
from tailwatch.group import temp_dirs, unseen
from tailwatch.integrations import model_sources

if TYPE_CHECKING:
    from tailwatch.runtime.session import Watch

LOGGING = ("slow_gap_ms", "gc_warn_ms", "gc_log_all")


def context_of(watch: Watch) -> DiagnosisContext:
    """That of a process that is watched."""
    state, healthy, load = watch.gc.state, watch.membership.healthy(), watch.load.read()
    run = temp_dirs.is_of_a_launcher(watch.config.dir)
    found = unseen.read(watch.config.dir) if watch.config.dir else unseen.Unseen()
    routes = dict.fromkeys((*found.routes, *(" ".join(each) for each in watch.routes.uncounted)))
    stamped = bool(watch.config.dir) and found.is_stamped(watch.config.dir)
    return DiagnosisContext(
        gc_policy=watch.gc.policy,
        gc_choice=watch.gc.reason,
        gc_measured=watch.coordinator.measured,
        freeze_done=bool(state.done),
        freeze_wanted=watch.gc.waiting and state.gave_up,
        external_freezes=watch.gc.external_freezes,
        gc_enabled=gc.isenabled(),
        thresholds=gc.get_threshold(),
        python_version=sys.version_info[:3],
        unknown_environment=watch.config.unknown_environment,
        memory_bytes=watch.memory_bytes,
        fast_sse=watch.config.fast_sse,
        accelerated=watch.accelerated,
        notes=list(watch.notes),
        started=("run" if run else "environment") if watch.automatic else "install",
        healthy_concurrency=load.healthy,
        highest_concurrency=load.highest,
        queued_seconds=healthy.queued_seconds,
        unseen_servers=() if stamped else found.servers,
        unseen_ports=() if stamped else found.ports,
        uncounted_routes=tuple(routes),
        opened_before=found.opened,
        logged={name: float(value) for name in LOGGING if (value := getattr(watch.config, name))},
        model_engines=model_sources.model_engines(),
        model_clients=model_sources.model_clients(),
    )
