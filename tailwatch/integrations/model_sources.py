"""What is loaded in this process that makes tokens, or asks another server for them: by the names of modules. Nothing
is imported for it."""

from __future__ import annotations

import sys

_ENGINES = (
    "vllm",
    "sglang",
    "lmdeploy",
    "tensorrt_llm",
    "llama_cpp",
    "mlc_llm",
    "ctranslate2",
    "onnxruntime_genai",
    "exllamav2",
    "transformers.generation.utils",
)
_CLIENTS = (
    "openai",
    "anthropic",
    "litellm",
    "ollama",
    "mistralai",
    "cohere",
    "groq",
    "together",
    "google.genai",
    "huggingface_hub.inference._client",
    "tritonclient",
)
_ANY_SERVERS = ("aiohttp.client", "httpx", "grpc")  # of servers of any kind: named where no other client is


def model_engines() -> tuple[str, ...]:
    """Loaded engines, by their package."""
    return _loaded(_ENGINES)


def model_clients() -> tuple[str, ...]:
    """Loaded clients of model servers, by their package; of any server, where there is none of these."""
    return _loaded(_CLIENTS) or _loaded(_ANY_SERVERS)


def _loaded(names: tuple[str, ...]) -> tuple[str, ...]:
    found = [name for name in names if name in sys.modules]
    return tuple(name if name == "google.genai" else name.partition(".")[0] for name in found)
