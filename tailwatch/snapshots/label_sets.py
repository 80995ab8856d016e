"""Which label sets matter most."""

from __future__ import annotations

from collections import Counter

from tailwatch.snapshots.snapshot import Snapshot


def most_requested(snapshot: Snapshot, most: int) -> list[tuple[str, str]]:
    """(model_name, route) of the label sets with the most requests that ended, the most first; in one pass, as there
    may be thousands."""
    ended: Counter[tuple[str, str]] = Counter()
    for model, route, series in snapshot._series():
        ended[model, route] += sum(series.reasons)
    return [labels for labels, _ in ended.most_common(most)]
