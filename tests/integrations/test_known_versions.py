"""What the hooks stand on, in the source of each released version: tables made by tests/servers/symbols/collect.py."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailwatch.integrations import sglang_outputs, sglang_steps, transformers, vllm, vllm_routing

SYMBOLS = Path(__file__).parents[1] / "servers" / "symbols"
ROOT = Path(__file__).parents[2]
Table = dict[str, dict[str, str | None]]
VLLM, SGLANG, TRANSFORMERS = (
    json.loads((SYMBOLS / f"{name}.json").read_text()) for name in ("vllm", "sglang", "transformers")
)
SINCE = {  # fields that older versions lack: there they are unknown
    "SchedulerOutput.preempted_req_ids": (0, 12),
    "CachedRequestData.num_output_tokens": (0, 11, 2),
    "CachedRequestData.resumed_req_ids": (0, 11, 1),
    "ModelRunnerOutput.cudagraph_stats": (0, 13),
    "GPUModelRunner cudagraph_stats=cudagraph_stats": (0, 13),
    "GPUModelRunner V2 cudagraph_stats=cudagraph_stats": (0, 30),
}
GONE = {"CachedRequestData.resumed_from_preemption": (0, 11, 1)}
NOT_OVERRIDDEN = ("AsyncScheduler.schedule", "AsyncScheduler.update_from_output")


def key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_table_has_a_release_of_each_minor_version() -> None:
    """From the first that is supported to the newest that was there."""
    minors = {key(version)[1] for version in VLLM}
    assert min(minors) == 10
    assert minors >= set(range(10, 34)) - {15}  # 0.15 was published without its source


@pytest.mark.parametrize("version", VLLM)
def test_vllm_has_what_the_hooks_stand_on(version: str) -> None:
    """Each symbol is there, but for the fields whose absence is known and means unknown."""
    for symbol, extract in VLLM[version].items():
        if symbol in NOT_OVERRIDDEN:
            assert extract is None
        elif symbol in SINCE:
            assert (extract is not None) == (key(version) >= SINCE[symbol]), symbol
        elif symbol in GONE:
            gone = extract is None or extract.startswith("def ")  # a deprecated property, for a while
            assert gone == (key(version) >= GONE[symbol]), symbol
        else:
            assert extract is not None, symbol


@pytest.mark.parametrize("version", VLLM)
def test_arguments_stand_where_the_hooks_read_them(version: str) -> None:
    """By position: the batch first, then the answer; the request; the outputs and their stamp."""
    row = VLLM[version]
    assert str(row["Scheduler.update_from_output"]).startswith(
        "def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput"
    )
    assert str(row["Scheduler.add_request"]).startswith("def add_request(self, request: Request")
    assert str(row["KVConnectorBase_V1.get_num_new_matched_tokens"]).startswith(
        "def get_num_new_matched_tokens(self, request: 'Request', num_computed_tokens: int"
    )
    assert str(row["KVConnectorBase_V1.update_state_after_alloc"]).startswith(
        "def update_state_after_alloc(self, request: 'Request', blocks: 'KVCacheBlocks', num_external_tokens: int"
    )
    assert str(row["Worker.execute_model"]).startswith("def execute_model(self, scheduler_output: ")
    assert str(row["OutputProcessor.add_request"]).startswith("def add_request(self, request: EngineCoreRequest")
    assert str(row["OutputProcessor.process_outputs"]).startswith(
        "def process_outputs(self, engine_core_outputs: list[EngineCoreOutput], engine_core_timestamp:"
    )


def test_the_hooks_name_what_the_table_has() -> None:
    """A hook on something new adds it to the collector."""
    row = VLLM[max(VLLM, key=key)]
    owners = {"": "Scheduler", "connector": "KVConnectorBase_V1"}
    for part in vllm.PARTS:
        held, _, name = part.name.rpartition(".")
        assert f"{owners[held]}.{name}" in row
    for step in (*vllm.STEPS, *vllm.RANKS):
        assert f"{step.owner}.{step.method}" in row
    for path in vllm_routing.OUTPUTS:
        assert set(path.wrappers(Mock())) <= set(row)


def test_each_field_that_is_read_is_in_the_table() -> None:
    """The reader's own list, csrc/python/stamp/step_reader.h, against the collected fields."""
    text = (ROOT / "csrc" / "python" / "stamp" / "step_reader.h").read_text()
    listed = text.partition("#define STEP_ATTRIBUTES(A)")[2].partition("\n\n")[0]
    read = {part.partition(")")[0] for part in listed.split("A(")[1:]}
    elsewhere = {"running", "waiting", "kv_cache_manager", "usage", "requests", "runtime_mode"}  # of the scheduler
    fields = {symbol.rpartition(".")[2] for row in VLLM.values() for symbol in row}
    assert read - elsewhere <= fields


# ---- SGLang ----


SGLANG_FIELDS = ("finished_reasons", "completion_tokens")
SGLANG_OUTPUTS = {
    *("SenderWrapper.send_output", "Scheduler.send_to_detokenizer", "Scheduler self.ipc_channels.send_to_detokenizer"),
    *(
        f"Batch{what}{kind}.{name}"
        for what in ("TokenID", "Str")
        for kind in ("Out", "Output")
        for name in SGLANG_FIELDS
    ),
}


def test_sglang_s_table_has_each_release_of_0_5() -> None:
    """And the last of 0.4."""
    assert {key(version)[2] for version in SGLANG if version.startswith("0.5.")} == set(range(1, 24))
    assert "0.4.10" in SGLANG


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_has_what_the_hooks_stand_on(version: str) -> None:
    """By position: the batch, and its result; the request, and whether it was retracted."""
    row = SGLANG[version]
    ranks = ("Scheduler.attn_tp_rank", "Scheduler.ps", "Scheduler get_parallel().attn_tp_rank")
    assert any(row[rank] for rank in ranks)
    for symbol, extract in row.items():
        assert extract is not None or symbol in ranks or symbol in SGLANG_OUTPUTS, symbol
    assert str(row["Scheduler.run_batch"]).startswith("def run_batch(self, batch: ScheduleBatch")
    assert str(row["Scheduler.process_batch_result"]).startswith(
        "def process_batch_result(self, batch: ScheduleBatch, result:"
    )
    assert str(row["Scheduler._add_request_to_queue"]).startswith("def _add_request_to_queue(self, req: Req")
    for part in sglang_steps.PARTS:
        assert "send_output" in part.name or row[f"Scheduler.{part.name}"]


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_s_messages_have_what_they_are_joined_by(version: str) -> None:
    """Where one object sends them: from 0.5.7 on. Before, tokens have no stamp."""
    row = SGLANG[version]
    kinds = ("Out", "Output")  # until 0.5.2, since
    assert any(all(row[f"BatchTokenID{kind}.{name}"] for name in SGLANG_FIELDS) for kind in kinds)
    assert any(all(row[f"BatchStr{kind}.{name}"] for name in SGLANG_FIELDS) for kind in kinds)
    found = row["SenderWrapper.send_output"]
    assert (found is not None) == (key(version) >= (0, 5, 7))
    assert found is None or found.startswith("def send_output(self, output:")
    holders = ("Scheduler.send_to_detokenizer", "Scheduler self.ipc_channels.send_to_detokenizer")
    assert [row[holder] is not None for holder in holders] == [key(version) < (0, 5, 13), key(version) >= (0, 5, 13)]
    [part] = [each for each in sglang_steps.PARTS if each.what == "send"]
    assert [f"Scheduler.{part.formerly}", f"Scheduler self.{part.name}"] == [f"{each}.send_output" for each in holders]
    for path in sglang_outputs.OUTPUTS:
        assert set(path.wrappers(Mock())) <= set(row)
    assert str(row["TokenizerManager._handle_batch_output"]).startswith("def _handle_batch_output(self, recv_obj:")


# ---- transformers ----

TRANSFORMERS_SINCE = {  # what is read where it is there
    "ContinuousBatchProcessor.inputs_and_outputs": (5, 1),
    "ContinuousBatchProcessor.use_async_batching": (5, 3),
    "ContinuousBatchingIOs.requests_in_batch": (5, 3),
    "ContinuousBatchingIOs.prepare_batch_update": (5, 3),
    "ContinuousBatchingIOs.prepare_batch_tensors": (5, 3),
    "ContinuousBatchingAsyncIOs.io_pairs": (5, 3),
    "ContinuousBatchingAsyncIOs.current_pair": (5, 3),
    "ContinuousBatchingAsyncIOs.prepare_batch_update": (5, 3),
    "ContinuousBatchingAsyncIOs.prepare_batch_tensors": (5, 3),
    "HostDeviceIOPair.host_io": (5, 3),
    "FutureRequestState.state": (5, 3),
    "FutureRequestState.has_new_token": (5, 3),
    "FutureRequestState.query_length": (5, 6),
    "RequestState.tokens_to_process": (5, 0),
    "RequestState._true_initial_tokens": (5, 0),
    "ContinuousBatchingManager.register_result_handler": (5, 5),
    "OutputRouter.deliver_batch": (5, 5),
    "PagedAttentionCache.compute_free_capacity": (5, 18),
}
TRANSFORMERS_GONE = {  # as others came in their place
    "ContinuousBatchProcessor.requests_in_batch": (5, 4),
    "RequestState.prompt_ids": (5, 0),
    "PagedAttentionCache.get_num_free_blocks": (5, 18),
}


def test_transformers_table_has_each_minor_version() -> None:
    """Of those that batch continuously for a server."""
    assert {key(version)[1] for version in TRANSFORMERS if version.startswith("5.")} >= set(range(25))
    assert "4.57.6" in TRANSFORMERS


@pytest.mark.parametrize("version", TRANSFORMERS)
def test_transformers_has_what_the_hooks_stand_on(version: str) -> None:
    """A batch, its requests and their lengths are found in each."""
    row = TRANSFORMERS[version]
    for symbol, extract in row.items():
        if symbol in TRANSFORMERS_SINCE:
            assert (extract is not None) == (key(version) >= TRANSFORMERS_SINCE[symbol]), symbol
        elif symbol in TRANSFORMERS_GONE:
            assert extract is None or key(version) < TRANSFORMERS_GONE[symbol] or symbol == "RequestState.prompt_ids"
        else:
            assert extract is not None, symbol
    assert str(row["Scheduler.add_waiting_request"]).startswith("def add_waiting_request(self, state: RequestState")
    assert row["ContinuousBatchProcessor.requests_in_batch"] or row["ContinuousBatchingIOs.requests_in_batch"]
    assert row["RequestState.tokens_to_process"] or row["RequestState.prompt_ids"]
    assert row["PagedAttentionCache.compute_free_capacity"] or row["PagedAttentionCache.get_num_free_blocks"]


def test_the_hooks_on_transformers_name_what_the_table_has() -> None:
    """Of the processor, of what it holds, and of the way of results."""
    row = TRANSFORMERS[max(TRANSFORMERS, key=key)]
    owners = {"": "ContinuousBatchProcessor", "scheduler": "Scheduler", "inputs_and_outputs": "ContinuousBatchingIOs"}
    for part in transformers.PARTS:
        held, _, name = part.name.rpartition(".")
        assert row[f"{owners[held]}.{name}"]
    for path in transformers.OUTPUTS:
        assert all(row[name] for name in path.wrappers(Mock()))
