"""Advice as it fits the server: rules write it for ``install(app, …)``."""

from __future__ import annotations

import re
from collections.abc import Mapping

STARTED = ("install", "run", "environment")
"""By tailwatch.install() in the server's code, by ``tailwatch run``, or by TAILWATCH_* variables and plugins."""

_CALL = re.compile(r"install\((?:app|role='[^']*'), (\w+=[^()]*)\)")
_OPTION = re.compile(r"(\w+)=('[^']*'|\[[^\]]*\]|[^,]+)")
_LOGS = re.compile(r"`?install\((?:app|role='[^']*'), (slow_gap_ms|gc_warn_ms|gc_log_all)=(\d+|True)\)`?(:| logs)")
_FREEZE = re.compile(r"tailwatch\.(?:re)?freeze\(\)")


def fit(advice: str, started: str, logged: Mapping[str, float]) -> str:
    """The same advice as flags of ``tailwatch run`` or as variables, and without options that are in force.

    started: one of STARTED. logged: options of the log, and from how many milliseconds on they log.
    """
    advice = _LOGS.sub(lambda found: _in_the_log(found, logged), advice)
    if started == "install":
        return advice
    options = _CALL.sub(_as_flags if started == "run" else _as_variables, advice)
    return _FREEZE.sub("tailwatch gc freeze --dir DIR", options)


def _in_the_log(found: re.Match[str], logged: Mapping[str, float]) -> str:
    """The advice to log, or where the lines are if they are logged already."""
    name, bound, then = found.groups()
    if not 0 < logged.get(name, 0.0) <= (1.0 if bound == "True" else float(bound)):
        return found[0]
    return f"{name} is in force{':' if then == ':' else ': the log has'}"


def _as_flags(call: re.Match[str]) -> str:
    flags = (f"--{name.replace('_', '-')}={_plain(value)}" for name, value in _OPTION.findall(call[1]))
    return f"tailwatch run {' '.join(flags)}"


def _as_variables(call: re.Match[str]) -> str:
    return " ".join(f"TAILWATCH_{name.upper()}={_plain(value)}" for name, value in _OPTION.findall(call[1]))


def _plain(value: str) -> str:
    """A Python value as a variable holds it."""
    return {"True": "1", "False": "0"}.get(value, value.strip("[]'"))
