"""How other servers make the bytes of one streamed token: what each does with its chunk classes, which are in
tests/support/stream_classes. A family is made anew by each call, so that one can be accelerated beside one that is not.

The openai package's classes are filled in as transformers 5.23.0 does; llama-cpp-python is its repository at 001fbb4.
`expected` is the frame written out by hand: what a re-created class makes is held to it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

ID = "chatcmpl-4f1c8d9e0a5b4c1f9d7e6a2b3c4d5e6f"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CREATED = 1790412345


@dataclass(frozen=True)
class Family:
    """One server's way from a text to bytes."""

    build: Callable[[str], Any]
    """The chunk of one text, as the server constructs it."""
    dump: Callable[[Any], bytes]
    """The frame of a chunk, as the server serialises and encodes it."""
    expected: Callable[[str], bytes]
    """The frame, by hand."""
    dialect: str
    """How text is escaped, as tailwatch.sse.Template.learn() calls it."""
    model: type[Any] | None = None
    """The class that sse.accelerate() takes; None: it is not a Pydantic one."""

    def frame(self, text: str) -> bytes:
        """From a text to bytes."""
        return self.dump(self.build(text))


def vllm_chat() -> Family:
    """Three Pydantic objects; model_dump_json(exclude_unset=True) through a serialiser in Python; an f-string."""
    from support.stream_classes import anew, vllm

    server = anew(vllm)

    def build(text: str) -> Any:
        delta = server.DeltaMessage(content=text)
        choice = server.ChatCompletionResponseStreamChoice(
            index=0, delta=delta, logprobs=None, finish_reason=None, token_ids=None
        )
        return server.ChatCompletionStreamResponse(
            id=ID, object="chat.completion.chunk", created=CREATED, choices=[choice], model=MODEL,
            kv_transfer_params=None,
        )  # fmt: skip

    def dump(chunk: Any) -> bytes:
        data = chunk.model_dump_json(exclude_unset=True, exclude_none=not chunk.choices)
        return f"data: {data}\n\n".encode()

    expected = _around(
        _head() + '"choices":[{"index":0,"delta":{"content":',
        '},"logprobs":null,"finish_reason":null,"token_ids":null}],"kv_transfer_params":null}\n\n',
    )
    return Family(build, dump, expected, "pydantic", server.ChatCompletionStreamResponse)


def vllm_completions() -> Family:
    """Two Pydantic objects; model_dump_json(exclude_unset=True); an f-string."""
    from support.stream_classes import anew, vllm

    server = anew(vllm)

    def build(text: str) -> Any:
        choice = server.CompletionResponseStreamChoice(
            index=0, text=text, logprobs=None, finish_reason=None, stop_reason=None, prompt_token_ids=None,
            token_ids=None, weight_versions=None,
        )  # fmt: skip
        return server.CompletionStreamResponse(
            id=ID, object="text_completion", created=CREATED, model=MODEL, choices=[choice], kv_transfer_params=None
        )

    def dump(chunk: Any) -> bytes:
        return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()

    expected = _around(
        _head("text_completion") + '"choices":[{"index":0,"text":',
        ',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null,'
        '"weight_versions":null}],"kv_transfer_params":null}\n\n',
    )
    return Family(build, dump, expected, "pydantic", server.CompletionStreamResponse)


def lmdeploy_chat() -> Family:
    """Three Pydantic objects; model_dump(mode="json", exclude_none=True); json.dumps; an f-string."""
    from support.stream_classes import anew, lmdeploy

    server = anew(lmdeploy)

    def build(text: str) -> Any:
        delta = server.DeltaMessage(role="assistant", content=text)
        choice = server.ChatCompletionResponseStreamChoice(
            index=0, delta=delta, finish_reason=None, logprobs=None, output_token_logprobs=None, output_ids=None,
            routed_experts=None,
        )  # fmt: skip
        return server.ChatCompletionStreamResponse(id=ID, created=CREATED, model=MODEL, choices=[choice], usage=None)

    def dump(chunk: Any) -> bytes:
        fields = chunk.model_dump(mode="json", exclude_none=True)
        return f"data: {json.dumps(fields)}\n\n".encode()

    head = (
        f'data: {{"id": "{ID}", "object": "chat.completion.chunk", "created": {CREATED}, "model": "{MODEL}", '
        '"choices": [{"index": 0, "delta": {"role": "assistant", "content": '
    )
    expected = _around(head, "}}]}\n\n", ascii=True)
    return Family(build, dump, expected, "json", server.ChatCompletionStreamResponse)


def trtllm_chat() -> Family:
    """Three Pydantic objects; model_dump_json(exclude_none=True); an f-string."""
    from support.stream_classes import anew, tensorrt_llm

    server = anew(tensorrt_llm)

    def build(text: str) -> Any:
        delta = server.DeltaMessage(content=text, reasoning_content="", tool_calls=None)
        choice = server.ChatCompletionResponseStreamChoice(
            index=0, delta=delta, avg_decoded_tokens_per_iter=None, stop_reason=None
        )
        return server.ChatCompletionStreamResponse(choices=[choice], model=MODEL, id=ID, created=CREATED)

    def dump(chunk: Any) -> bytes:
        return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()

    expected = _around(_head() + '"choices":[{"index":0,"delta":{"content":', ',"reasoning_content":""}}]}\n\n')
    return Family(build, dump, expected, "pydantic", server.ChatCompletionStreamResponse)


def openai_types() -> Family:
    """The openai package's own classes; model_dump_json(exclude_none=True), as transformers serve does."""
    from openai.types.chat import chat_completion_chunk as chunks

    class ChatCompletionChunk(chunks.ChatCompletionChunk):
        """Of this family alone."""

    def build(text: str) -> ChatCompletionChunk:
        fields = {"content": text, "role": None, "tool_calls": None, "reasoning_content": None}
        delta = chunks.ChoiceDelta.model_validate(fields)
        choice = chunks.Choice(delta=delta, index=0, finish_reason=None)
        return ChatCompletionChunk(
            id=ID, created=CREATED, model=MODEL, choices=[choice], usage=None, system_fingerprint="",
            object="chat.completion.chunk",
        )  # fmt: skip

    def dump(chunk: ChatCompletionChunk) -> bytes:
        return f"data: {chunk.model_dump_json(exclude_none=True)}\n\n".encode()

    expected = _around(
        f'data: {{"id":"{ID}","choices":[{{"delta":{{"content":',
        f'}},"index":0}}],"created":{CREATED},"model":"{MODEL}","object":"chat.completion.chunk",'
        '"system_fingerprint":""}\n\n',
    )
    return Family(build, dump, expected, "pydantic", ChatCompletionChunk)


def sglang_chat() -> Family:
    """Three msgspec Structs; encode, decode to str, encode again."""
    from support.stream_classes import sglang

    encode = sglang.encoder.encode

    def build(text: str) -> Any:
        delta = sglang.StreamDelta(role=None, content=text, reasoning_content=None)
        choice = sglang.StreamChoice(index=0, delta=delta, logprobs=None, finish_reason=None, matched_stop=None)
        return sglang.StreamChunk(
            id=ID, object="chat.completion.chunk", created=CREATED, model=MODEL, choices=[choice], usage=None
        )

    def dump(chunk: Any) -> bytes:
        return (b"data: " + encode(chunk) + b"\n\n").decode().encode()

    expected = _around(
        _head() + '"choices":[{"index":0,"delta":{"reasoning_content":null,"content":',
        '},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n',
    )
    return Family(build, dump, expected, "msgspec")


def llama_cpp_chat() -> Family:
    """A dict; json.dumps; the event as sse-starlette frames it, without what sse-starlette itself costs."""

    def build(text: str) -> dict[str, Any]:
        return {
            "id": ID,
            "model": MODEL,
            "created": CREATED,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        }

    def dump(chunk: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(chunk)}\r\n\r\n".encode()

    head = (
        f'data: {{"id": "{ID}", "model": "{MODEL}", "created": {CREATED}, "object": "chat.completion.chunk", '
        '"choices": [{"index": 0, "delta": {"content": '
    )
    expected = _around(head, '}, "logprobs": null, "finish_reason": null}]}\r\n\r\n', ascii=True)
    return Family(build, dump, expected, "json")


# ---- servers of which a function can be replaced ----


@dataclass(frozen=True)
class Builder:
    """A module that stands in for a server's: what tailwatch.integrations looks for is in it."""

    module: ModuleType
    frame: Callable[[str], bytes]
    """From a text to bytes, by whatever the module has at that moment."""


def sglang_builder() -> Builder:
    """SGLang's build_sse_content()."""
    from support.stream_classes import sglang

    module: Any = ModuleType("sglang.srt.entrypoints.openai.sse_utils")
    module.build_sse_content = sglang.build_sse_content

    def frame(text: str) -> bytes:
        built: str = module.build_sse_content(
            chunk_id=ID, created=CREATED, model=MODEL, index=0, content=text, logprobs=None, usage=None
        )
        return built.encode()

    return Builder(module, frame)


def transformers_builder() -> Builder:
    """transformers serve's ChatCompletionHandler._build_chunk_sse(), which reads the clock for each chunk."""
    from support.stream_classes import anew, transformers

    module: Any = ModuleType("transformers.cli.serving.chat_completion")
    module.ChatCompletionHandler = anew(transformers).ChatCompletionHandler
    handler = module.ChatCompletionHandler()

    def frame(text: str) -> bytes:
        built: str = handler._build_chunk_sse(ID, content=text, model=MODEL)
        return built.encode()

    return Builder(module, frame)


def lmdeploy_builder() -> Builder:
    """LMDeploy's generator, of which json.dumps can be replaced."""
    family = lmdeploy_chat()
    module: Any = ModuleType("lmdeploy.serve.openai.chat_completions.serving")
    module.json = json

    def frame(text: str) -> bytes:
        fields = family.build(text).model_dump(mode="json", exclude_none=True)
        return f"data: {module.json.dumps(fields)}\n\n".encode()

    return Builder(module, frame)


BUILDERS: dict[str, Callable[[], Builder]] = {
    "transformers serve": transformers_builder,
    "SGLang": sglang_builder,
    "LMDeploy": lmdeploy_builder,
}


def _head(kind: str = "chat.completion.chunk") -> str:
    return f'data: {{"id":"{ID}","object":"{kind}","created":{CREATED},"model":"{MODEL}",'


def _around(head: str, tail: str, *, ascii: bool = False) -> Callable[[str], bytes]:
    return lambda text: (head + json.dumps(text, ensure_ascii=ascii) + tail).encode()


FAMILIES: dict[str, Callable[[], Family]] = {
    "vLLM chat": vllm_chat,
    "vLLM completions": vllm_completions,
    "LMDeploy chat": lmdeploy_chat,
    "TensorRT-LLM chat": trtllm_chat,
    "openai package, transformers serve": openai_types,
    "SGLang chat, msgspec": sglang_chat,
    "llama-cpp-python, json.dumps": llama_cpp_chat,
}


Made = TypeVar("Made", Family, Builder)


def available(notes: list[str], makers: Mapping[str, Callable[[], Made]]) -> dict[str, Made]:
    """One of each whose packages are installed; a note for each other."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError as error:
            notes.append(f"not compared: {name} ({error})")
    return found
