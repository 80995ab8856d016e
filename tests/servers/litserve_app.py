"""A LitServe server with OpenAI's API whose model needs 30 ms for a token. Usage: litserve_app.py PORT"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import litserve

SECONDS_PER_TOKEN = 0.03  # 32 streams leave half of a core: a backlog hides pauses from the clients


class Model(litserve.LitAPI):
    """Streams words, to as many at once as there are."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    async def predict(self, prompt: Any, context: Any) -> AsyncIterator[str]:
        """As many words as were asked for."""
        for number in range(context.get("max_completion_tokens") or context.get("max_tokens") or 16):
            await asyncio.sleep(SECONDS_PER_TOKEN)
            yield f" word{number}"


if __name__ == "__main__":
    api = Model(spec=litserve.OpenAISpec(), enable_async=True)
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        port=int(sys.argv[1]), generate_client_file=False, log_level="warning"
    )
