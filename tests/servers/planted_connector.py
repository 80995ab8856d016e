"""A KV connector for vLLM (kv_connector_module_path) that has the KV of long prompts and takes its time: at first it
has no answer, then it loads while the request waits. Nothing is loaded: the model answers from what its cache has.

kv_connector_extra_config: ``undecided`` and ``seconds``, how long each takes; ``long``, from how many prompt tokens on;
``log``, a file that gets a line for each event, in both processes: what, request id, monotonic ns.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass
class Loads(KVConnectorMetadata):  # type: ignore[misc]  # it is of no type here
    """Requests whose load begins with this step."""

    ids: list[str] = field(default_factory=list)


class PlantedConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Both halves: the scheduler's and the worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._planted: dict[str, Any] = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._block = int(vllm_config.cache_config.block_size)
        self._asked: dict[str, float] = {}
        self._new: list[str] = []
        self._due: dict[str, float] = {}

    def _write(self, what: str, request: str) -> None:
        with open(self._planted["log"], "a") as log:
            log.write(json.dumps([what, request, time.monotonic_ns()]) + "\n")

    # ---- in the engine ----

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Nothing of a short prompt; of a long one all whole blocks, later."""
        if request.num_prompt_tokens < self._planted["long"]:
            return 0, False
        if request.request_id not in self._asked:
            self._asked[request.request_id] = time.monotonic()
            self._write("asked", request.request_id)
        if time.monotonic() - self._asked[request.request_id] < self._planted["undecided"]:
            return None, False
        whole = (request.num_prompt_tokens - 1) // self._block * self._block
        return max(0, whole - num_computed_tokens), whole > num_computed_tokens

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The load begins."""
        if num_external_tokens > 0:
            self._new.append(request.request_id)
            self._write("loads", request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """For the worker."""
        loads, self._new = Loads(self._new), []
        return loads

    # ---- in the worker ----

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """From now on."""
        for request in self._get_connector_metadata().ids:
            self._due[request] = time.monotonic() + self._planted["seconds"]

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Those whose time is over."""
        came = {request for request, due in self._due.items() if due <= time.monotonic()}
        for request in came:
            del self._due[request]
            self._write("came", request)
        return None, came or None

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded with a layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""
