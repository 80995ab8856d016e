"""The FastAPI app: /v1/completions, /v1/chat/completions, /v1/models, /health. Nothing in it is of tailwatch."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse

from tailwatch.demo.protocol import (
    Chat,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatRequest,
    Completion,
    CompletionRequest,
    Delta,
    Message,
    TextChoice,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailwatch.demo.engine import Engine, GenerationRequest, Output


def build_app(engine: Engine) -> FastAPI:
    """The app over an engine; the engine starts and stops with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start(asyncio.get_running_loop())
        yield
        await asyncio.to_thread(engine.stop)

    app = FastAPI(title="tailwatch demo", lifespan=lifespan)
    _add_completions(app, engine)
    _add_chat(app, engine)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [{"id": "demo", "object": "model"}]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def _add_completions(app: FastAPI, engine: Engine) -> None:
    async def completions(body: CompletionRequest) -> Response:
        request = engine.submit(body.prompt, body.max_tokens)
        if body.stream:
            return StreamingResponse(_completion_frames(engine, request, body.model), media_type="text/event-stream")
        choice = TextChoice(text=await _whole(engine, request), finish_reason="length")
        return _json(Completion(**_heading("cmpl", request, body.model), choices=[choice], usage=_usage(request)))

    app.add_api_route("/v1/completions", completions, methods=["POST"], response_model=None)


def _add_chat(app: FastAPI, engine: Engine) -> None:
    async def chat(body: ChatRequest) -> Response:
        request = engine.submit("\n".join(message.content for message in body.messages), body.max_tokens)
        if body.stream:
            return StreamingResponse(_chat_frames(engine, request, body.model), media_type="text/event-stream")
        message = Message(role="assistant", content=await _whole(engine, request))
        choice = ChatChoice(message=message, finish_reason="length")
        return _json(Chat(**_heading("chatcmpl", request, body.model), choices=[choice], usage=_usage(request)))

    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)


async def _completion_frames(engine: Engine, request: GenerationRequest, model: str) -> AsyncIterator[str]:
    heading = _heading("cmpl", request, model)
    async for output in _outputs(engine, request):
        choice = TextChoice(text=output.text, finish_reason=output.finish_reason)
        yield _frame(Completion(**heading, choices=[choice]))
    yield "data: [DONE]\n\n"


async def _chat_frames(engine: Engine, request: GenerationRequest, model: str) -> AsyncIterator[str]:
    """The role comes in a frame of its own, with the first output, as vLLM sends it."""
    heading = _heading("chatcmpl", request, model)
    opening: Delta | None = Delta(role="assistant", content="")
    async for output in _outputs(engine, request):
        if opening is not None:
            yield _frame(ChatChunk(**heading, choices=[ChatChunkChoice(delta=opening)]))
            opening = None
        choice = ChatChunkChoice(delta=Delta(content=output.text), finish_reason=output.finish_reason)
        yield _frame(ChatChunk(**heading, choices=[choice]))
    yield "data: [DONE]\n\n"


async def _outputs(engine: Engine, request: GenerationRequest) -> AsyncIterator[Output]:
    """The request's tokens until the last; a consumer that goes away takes the request out of the batch."""
    finished = False
    try:
        while not finished:
            output = await request.outputs.get()
            finished = output.finish_reason is not None
            yield output
    finally:
        if not finished:
            engine.abort(request)


async def _whole(engine: Engine, request: GenerationRequest) -> str:
    return "".join([output.text async for output in _outputs(engine, request)])


def _heading(kind: str, request: GenerationRequest, model: str) -> dict[str, Any]:
    return {"id": f"{kind}-{request.number}", "created": int(time.time()), "model": model}


def _usage(request: GenerationRequest) -> Usage:
    prompt, completion = len(request.prompt), len(request.detokenizer.pieces)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def _frame(chunk: Completion | ChatChunk) -> str:
    return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n"


def _json(body: Completion | Chat) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")
