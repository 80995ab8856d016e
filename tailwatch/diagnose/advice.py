"""Advice as it fits how the server was started: rules write it for ``install(app, …)``."""

from __future__ import annotations

import re

STARTED = ("install", "run", "environment")
"""By tailwatch.install() in the server's code, by ``tailwatch run``, or by TAILWATCH_* variables and plugins."""

_CALL = re.compile(r"install\((?:app|role='[^']*'), (\w+=[^()]*)\)")
_OPTION = re.compile(r"(\w+)=('[^']*'|\[[^\]]*\]|[^,]+)")
_FREEZE = re.compile(r"tailwatch\.(?:re)?freeze\(\)")


def fit(advice: str, started: str) -> str:
    """The same advice as flags of ``tailwatch run`` or as variables; started: one of STARTED."""
    if started == "install":
        return advice
    options = _CALL.sub(_as_flags if started == "run" else _as_variables, advice)
    return _FREEZE.sub("tailwatch gc freeze --dir DIR", options)


def _as_flags(call: re.Match[str]) -> str:
    flags = (f"--{name.replace('_', '-')}={_plain(value)}" for name, value in _OPTION.findall(call[1]))
    return f"tailwatch run {' '.join(flags)}"


def _as_variables(call: re.Match[str]) -> str:
    return " ".join(f"TAILWATCH_{name.upper()}={_plain(value)}" for name, value in _OPTION.findall(call[1]))


def _plain(value: str) -> str:
    """A Python value as a variable holds it."""
    return {"True": "1", "False": "0"}.get(value, value.strip("[]'"))
