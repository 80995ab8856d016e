"""Options that do not go together: one that nothing would look at is refused, not ignored."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from tailwatch.errors import OptionError

WHEN = ("rate", "arrivals", "scale", "spread", "schedule", "save_schedule")
"""What says when a request is sent: of an open loop."""
SCHEDULES = ("rate", "arrivals", "duration", "requests", "seed", "trace", "scale", "spread")
"""What a schedule is made of, beside its lengths."""
LENGTHS = ("prompt_tokens", "output_tokens")


def given(arguments: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of the options that were given, as one writes them."""
    values = {name: getattr(arguments, name, None) for name in names}
    return ["--" + name.replace("_", "-") for name, value in values.items() if value is not None and value is not False]


def refuse(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """OptionError where one of them was given."""
    if both := given(arguments, names):
        raise OptionError(f"{why}; leave out {', '.join(both)}")
