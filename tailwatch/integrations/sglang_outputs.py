"""SGLang in the API process: its tokenizer manager sends each request to a scheduler, and takes the messages that come
back through the detokenizer. Neither has a stamp of the step, but it has how many tokens each request has by then: the
scheduler's own record of what it sent has the same (sglang_steps.py).

Read in 0.4.10 to 0.5.23. Apart from sglang.py, which imports the encoders.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tailwatch import _hot
from tailwatch.integrations.output_hook import OutputPath
from tailwatch.integrations.step_shapes import argument

if TYPE_CHECKING:
    from tailwatch.integrations.output_hook import OutputHook


def _wrappers(hook: OutputHook) -> dict[str, Callable[[FunctionType], Any]]:
    """Of ``_send_one_request(self, tokenized_obj)``, once with another argument before it, and of
    ``_handle_batch_output(self, recv_obj)``: both a coroutine function in later versions."""

    def around_send(original: FunctionType) -> Any:
        @wraps(original)
        def _send_one_request(*args: Any, **kwargs: Any) -> Any:
            hook.expect_of("rid", (*args[1:], *kwargs.values()))
            return original(*args, **kwargs)

        return _send_one_request

    def around_handle(original: FunctionType) -> Any:
        @wraps(original)
        def _handle_batch_output(*args: Any, **kwargs: Any) -> Any:
            came = _hot.now()
            hook.received_message(argument(args, kwargs, 1, "recv_obj"), came)
            return original(*args, **kwargs)  # which may let requests send meanwhile

        return _handle_batch_output

    return {
        "TokenizerManager._send_one_request": around_send,
        "TokenizerManager._handle_batch_output": around_handle,
    }


OUTPUTS = (OutputPath("sglang.srt.managers.tokenizer_manager", _wrappers),)
