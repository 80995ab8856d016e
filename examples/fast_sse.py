"""A chat server on tailwatch's encoders: OpenAI's frames, one made for each token by a copy and not by a serialiser.

python examples/fast_sse.py 8000
curl -N http://127.0.0.1:8000/v1/chat/completions -d '{"model": "toy", "messages": [{"role": "user", "content": "hi"}]}'
curl http://127.0.0.1:8000/metrics
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

import tailwatch
from tailwatch import sse

app = FastAPI()


async def generate(prompt: str) -> AsyncIterator[str]:
    """A model that takes 5 ms a token and says the prompt backwards."""
    for word in reversed(prompt.split()):
        await asyncio.sleep(0.005)
        yield f"{word} "


async def frames(asked: dict[str, Any]) -> AsyncIterator[bytes]:
    """The answer's frames, bytes ready to send. tailwatch has what each holds and does not read it again."""
    usage = (asked.get("stream_options") or {}).get("include_usage", False)
    chat = sse.ChatStream(f"chatcmpl-{uuid.uuid4().hex}", asked["model"], int(time.time()), include_usage=usage)
    prompt, count = asked["messages"][-1]["content"], 0
    yield chat.role()
    async for text in generate(prompt):
        yield chat.content(text)
        count += 1
    yield chat.finish("stop")
    if usage:
        yield chat.usage(prompt=len(prompt.split()), completion=count)
    yield sse.DONE


@app.post("/v1/chat/completions")
async def chat_completions(request: Request) -> StreamingResponse:
    """Streams an answer to the last message."""
    return StreamingResponse(frames(await request.json()), media_type="text/event-stream")


tailwatch.install(app)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
