"""Whether an installation works, in a second: on Linux a stream is stamped and a pause is measured, elsewhere a server
with install() in its code starts and the encoders write. Needs nothing but the package."""

from __future__ import annotations

import gc
import sys

import tailwatch
from tailwatch.sse import ChatStream


class App:
    """An ASGI app."""

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        """Nothing."""


app = App()
watch = tailwatch.install(app, gc="observe")
with tailwatch.stream(model="m", route="r") as stream:
    for _ in range(3):
        stream.token()
assert ChatStream("id", "m", 1).content('"').endswith(b"\n\n")
if sys.platform == "linux":
    gc.collect()
    taken = tailwatch.snapshot()
    assert (taken.itl.count, taken.ttft.count, taken.tokens) == (2, 1, 3), taken
    assert sum(taken.paused.values()) > 0, taken.paused
else:
    assert watch.app is app
assert tailwatch.uninstall() == []
print(f"tailwatch {tailwatch.__version__} works on {sys.platform}, Python {sys.version.split()[0]}")
