"""OpenAI text_completion, as the API or one of the servers that follow it writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tailwatch.sse.choice_stream import ChoiceStream
from tailwatch.sse.shape import Shape
from tailwatch.sse.shapes import openai, sglang, transformers, vllm


class CompletionStream(ChoiceStream):
    """One streamed completion: content(text) for each token."""

    __slots__ = ()

    shapes: ClassVar[Mapping[str, Shape]] = {
        "openai": openai.COMPLETION,
        "vllm": vllm.COMPLETION,
        "sglang": sglang.COMPLETION,
        "transformers": transformers.COMPLETION,
    }
