"""vLLM's engine driven from code, without its HTTP server: the engine itself stamps the tokens.

    tailwatch run --dir=/dev/shm/mine -- python examples/engine_only.py MODEL
    tailwatch why --dir /dev/shm/mine

It generates beside a long prompt. Nothing here is particular to tailwatch: the engine runs in a process of its own, in
which `tailwatch run` installs it. What this script does with a token is not seen.
"""

from __future__ import annotations

import asyncio
import sys

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

STREAMS, TOKENS, LONG = 4, 200, 1000


async def generate(engine: AsyncLLM, name: str, prompt: str, tokens: int) -> int:
    """One request; how many tokens it had."""
    how = SamplingParams(max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    return sum([len(output.outputs[0].token_ids) async for output in engine.generate(prompt, how, name)])


async def main(model: str) -> None:
    """Some streams, and into the midst of them a long prompt."""
    arguments = AsyncEngineArgs(model=model, dtype="float32", enforce_eager=True, max_model_len=2048)
    engine = AsyncLLM.from_engine_args(arguments)
    try:
        await generate(engine, "warm-up", "why", 20)
        streams = [asyncio.ensure_future(generate(engine, f"stream-{i}", "why", TOKENS)) for i in range(STREAMS)]
        await asyncio.sleep(0.4)
        await generate(engine, "long", " ".join(["token"] * LONG), 2)
        print(f"received {sum(await asyncio.gather(*streams))} tokens")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
