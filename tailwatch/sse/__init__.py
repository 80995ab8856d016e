"""Fast SSE encoders: a streamed token for the price of a memory copy, byte for byte what the server would have sent."""

from tailwatch.sse.accelerate import Acceleration, Fallback, accelerate
from tailwatch.sse.chat import ChatStream
from tailwatch.sse.completions import CompletionStream
from tailwatch.sse.event import DONE, comment, event, text
from tailwatch.sse.messages import MessageStream
from tailwatch.sse.responses import ResponseStream
from tailwatch.sse.template import Template

__all__ = [
    "DONE",
    "Acceleration",
    "ChatStream",
    "CompletionStream",
    "Fallback",
    "MessageStream",
    "ResponseStream",
    "Template",
    "accelerate",
    "comment",
    "event",
    "text",
]
