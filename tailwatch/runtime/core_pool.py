"""The writers of a process's numbers. A segment stays mapped while the process lives: one that an install() has left is
used again by a later one of its size."""

from __future__ import annotations

from tailwatch import _hot
from tailwatch.asgi import middleware
from tailwatch.asgi.routes import Routes
from tailwatch.options.config import Config

_spare: dict[tuple[int, bool], _hot.Core] = {}  # by label sets and OTLP


def core_for(config: Config, routes: Routes, *, served: bool) -> _hot.Core:
    """A writer from zero. served: with what OTLP alone has of each label set."""
    slo, slow_ns = config.slo.as_core(), int(config.slow_gap_ms * 1e6)
    core = _spare.pop((config.max_label_sets, served), None)
    if core is None:
        return _hot.Core(
            config.role, config.max_label_sets, slo, slow_ns, routes.route_of, middleware.timed_send, served
        )
    core.reset()
    core.streamed()
    core.configure(slo, slow_ns)
    core.rebind(config.role, routes.route_of, middleware.timed_send)
    return core


def keep(config: Config, core: _hot.Core, *, served: bool) -> None:
    """Leaves a writer for the next install() of its size; the arguments are those that it was made with."""
    _spare[config.max_label_sets, served] = core
