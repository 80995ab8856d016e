"""A streaming server with tailwatch inside: FastAPI under uvicorn, OpenAI-style server-sent events.

python examples/fastapi_server.py 8000
curl -N -X POST 'http://127.0.0.1:8000/v1/completions?prompt=hello'
curl http://127.0.0.1:8000/metrics
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import tailwatch

app = FastAPI()


async def tokens(prompt: str) -> AsyncIterator[str]:
    """A model that takes 5 ms a token and says the prompt backwards."""
    for word in reversed(prompt.split()):
        await asyncio.sleep(0.005)
        event = {"object": "text_completion", "model": "toy", "choices": [{"index": 0, "text": f"{word} "}]}
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"


@app.post("/v1/completions")
async def completions(prompt: str = "so late token that was why") -> StreamingResponse:
    """Streams one event a token."""
    return StreamingResponse(tokens(prompt), media_type="text/event-stream")


tailwatch.install(app, slo="ttft<=500ms,tpot<=40ms@99%", gc_warn_ms=50)


def main() -> None:
    """Serves on loopback, on the port given (8000)."""
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)


if __name__ == "__main__":
    main()
