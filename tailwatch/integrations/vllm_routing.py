"""vLLM in the API process: its client chooses an engine for each request where there are several, and hands their
outputs to the requests.

Read in 0.33.0. Apart from vllm.py, which imports the encoders.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tailwatch import _hot
from tailwatch.integrations.output_hook import OutputPath
from tailwatch.integrations.request_routing import Choice

_LONGEST_INTERVAL = 1 << 31

if TYPE_CHECKING:
    from tailwatch.integrations.output_hook import OutputHook


def _interval(args: tuple[Any, ...], request: Any) -> int:
    """Tokens for which messages of a request wait (``--stream-interval``); 0 where that is not known."""
    try:
        state = args[0].request_states[request.request_id]
        if state.output_kind.name != "DELTA":  # then each token is sent
            return 0
        interval = state.stream_interval
    except Exception:  # a version that has none, or keeps it elsewhere
        return 0
    return interval if isinstance(interval, int) and 0 < interval < _LONGEST_INTERVAL else 0


def _wrappers(hook: OutputHook) -> dict[str, Callable[[FunctionType], Any]]:
    """Of ``add_request(self, request, ...)``, whose request_id outputs have, and of ``process_outputs(self,
    engine_core_outputs, engine_core_timestamp, ...)``."""

    def around_add(original: FunctionType) -> Any:
        @wraps(original)
        def add_request(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            request = args[1] if len(args) > 1 else kwargs.get("request")
            hook.expect_of("request_id", (request,), _interval(args, request))
            return result

        return add_request

    def around_process(original: FunctionType) -> Any:
        @wraps(original)
        def process_outputs(*args: Any, **kwargs: Any) -> Any:
            came = _hot.now()
            result = original(*args, **kwargs)
            outputs = args[1] if len(args) > 1 else kwargs.get("engine_core_outputs")
            key = args[2] if len(args) > 2 else kwargs.get("engine_core_timestamp")
            if key is not None:
                hook.received(outputs, key, came)  # type: ignore[arg-type]  # what it is not, it refuses
            return result

        return process_outputs

    return {"OutputProcessor.add_request": around_add, "OutputProcessor.process_outputs": around_process}


OUTPUTS = (OutputPath("vllm.v1.engine.output_processor", _wrappers),)


def _rank(identity: bytes) -> int | None:
    """Engines are addressed by their data parallel rank, as two bytes."""
    return int.from_bytes(identity, "little") if isinstance(identity, bytes) and len(identity) == 2 else None


# The second is the first's subclass, and chooses itself: by load, or by X-data-parallel-rank.
CHOICES = tuple(
    Choice("vllm.v1.engine.core_client", owner, "get_core_engine_for_request", _rank)
    for owner in ("DPAsyncMPClient", "DPLBAsyncMPClient")
)
