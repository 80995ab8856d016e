"""A million models and routes: the limit holds, the rest is counted, memory stays."""

from __future__ import annotations

import resource

import pytest

from tailwatch import _hot, snapshots
from tailwatch.asgi import middleware

pytestmark = pytest.mark.stress


def _pages() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("names", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_hostile_labels_fill_the_table_and_no_more(names: int) -> None:
    """32 label sets are kept, every further request is counted as overflow, and none is lost."""
    core = _hot.Core("api", 32, (0, 0, 0, 0, 990_000), 0, lambda scope: scope["path"], middleware.timed_send)
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    before = 0
    for i in range(names):
        sender = core.request({"headers": [], "path": f'/{i}/é\n"{i}'}, _sink, True, 1, 1, 0, 1, None, False)
        sender.send(start)
        frame = b'data: {"model":"m-%d\\"","choices":[{"index":0,"text":"x"}]}\n\n' % i
        sender.send({"type": "http.response.body", "body": frame, "more_body": False})
        if i == 1000:
            before = _pages()
    snapshot = snapshots.take([core.address])

    assert len(snapshot.labels) == 32
    assert snapshot.label_overflow == names - 31
    assert snapshot.opened == sum(snapshot.requests.values()) == snapshot.tokens == names
    assert snapshot.where(model_name="other").tokens == names - 31
    assert _pages() - before < 4096  # KiB


def _sink(message: object) -> None:
    return None
