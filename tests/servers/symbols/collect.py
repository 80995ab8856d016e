"""Which version of a server has what our hooks stand on: downloads a release of each minor version, without building or
importing it, parses its source, and writes FILE: a table of version by symbol, with extracts of the source.

    python tests/servers/symbols/collect.py vllm|sglang|transformers [--from 0.10] [--cache DIR]

The table is committed beside this file; tests/integrations/test_known_versions.py reads it, and so does the doctor's
knowledge of what is missing where. Run it when a new version appears: what it prints is what has changed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
FIRST = {"vllm": "0.10", "sglang": "0.4", "transformers": "4.57"}
BINARY = {
    "vllm": ("--no-binary", ":all:"),
    "sglang": ("--only-binary", ":all:"),
    "transformers": ("--only-binary", ":all:"),
}
MOST_EXTRACT = 160  # characters


@dataclass(frozen=True)
class Symbol:
    """A function (with its arguments), a class's fields, or a text in a function, in the first file that has it."""

    name: str
    files: tuple[str, ...]
    owner: str = ""
    fields: tuple[str, ...] = ()
    calls: str = ""


_SCHEDULER, _CORE = "vllm/v1/core/sched/scheduler.py", "vllm/v1/engine/core.py"
_CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
_WORKER_BASE = ("vllm/v1/worker/worker_base.py", "vllm/worker/worker_base.py")
_SGL, _SGL_BATCH = "sglang/srt/managers/scheduler.py", "sglang/srt/managers/schedule_batch.py"
_SGL_PARTS, _SGL_TOKENIZER = "sglang/srt/managers/scheduler_components", "sglang/srt/managers/tokenizer_manager.py"
_CB = tuple(
    f"transformers/generation/{name}.py"
    for name in (
        *(
            f"continuous_batching/{part}"
            for part in ("continuous_api", "scheduler", "requests", "input_outputs", "cache")
        ),
        "continuous_batching",
    )
)
SYMBOLS: dict[str, tuple[Symbol, ...]] = {
    "vllm": (
        Symbol("schedule", (_SCHEDULER,), "Scheduler"),
        Symbol("update_from_output", (_SCHEDULER,), "Scheduler"),
        Symbol("get_grammar_bitmask", (_SCHEDULER,), "Scheduler"),
        Symbol("add_request", (_SCHEDULER,), "Scheduler"),
        Symbol("finish_requests", (_SCHEDULER,), "Scheduler"),
        Symbol("schedule", ("vllm/v1/core/sched/async_scheduler.py",), "AsyncScheduler"),
        Symbol("update_from_output", ("vllm/v1/core/sched/async_scheduler.py",), "AsyncScheduler"),
        Symbol("step", (_CORE,), "EngineCore"),
        Symbol("step_with_batch_queue", (_CORE,), "EngineCore"),
        Symbol("calls", (_CORE,), "EngineCore", calls="self.scheduler.schedule("),
        Symbol("calls", (_CORE,), "EngineCore", calls="self.scheduler.update_from_output("),
        Symbol("process_outputs", ("vllm/v1/engine/output_processor.py",), "OutputProcessor"),
        Symbol("add_request", ("vllm/v1/engine/output_processor.py",), "OutputProcessor"),
        Symbol(
            "SchedulerOutput",
            ("vllm/v1/core/sched/output.py",),
            fields=(
                *("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "total_num_scheduled_tokens"),
                *("scheduled_spec_decode_tokens", "preempted_req_ids"),
            ),
        ),
        Symbol(
            "CachedRequestData",
            ("vllm/v1/core/sched/output.py",),
            fields=(
                *("req_ids", "num_computed_tokens"),
                *("num_output_tokens", "resumed_req_ids", "resumed_from_preemption"),
            ),
        ),
        Symbol("NewRequestData", ("vllm/v1/core/sched/output.py",), fields=("req_id", "num_computed_tokens")),
        Symbol("execute_model", ("vllm/v1/worker/gpu_worker.py",), "Worker"),
        Symbol("WorkerBase", _WORKER_BASE, fields=("rank", "vllm_config")),
        Symbol(
            "ModelRunnerOutput",
            ("vllm/v1/outputs.py",),
            fields=("sampled_token_ids", "cudagraph_stats", "kv_connector_output"),
        ),
        Symbol("KVConnectorOutput", ("vllm/v1/outputs.py",), fields=("finished_recving",)),
        Symbol("Scheduler", (_SCHEDULER,), fields=("connector",)),
        Symbol("calls", (_SCHEDULER,), "Scheduler", calls="self.connector.get_num_new_matched_tokens("),
        Symbol("calls", (_SCHEDULER,), "Scheduler", calls="self.connector.update_state_after_alloc("),
        Symbol("get_num_new_matched_tokens", (_CONNECTOR,), "KVConnectorBase_V1"),
        Symbol("update_state_after_alloc", (_CONNECTOR,), "KVConnectorBase_V1"),
        *(
            Symbol("calls", (f"vllm/v1/worker/{file}",), runner, calls="cudagraph_stats=cudagraph_stats")
            for runner, file in (
                ("GPUModelRunner", "gpu_model_runner.py"),
                ("GPUModelRunner V2", "gpu/model_runner.py"),
            )
        ),
        Symbol("Request", ("vllm/v1/request.py",), fields=("request_id", "arrival_time", "num_output_tokens")),
        Symbol("EngineCoreOutputs", ("vllm/v1/engine/__init__.py",), fields=("outputs", "timestamp", "engine_index")),
        Symbol(
            "EngineCoreOutput", ("vllm/v1/engine/__init__.py",), fields=("request_id", "new_token_ids", "finish_reason")
        ),
    ),
    "sglang": (
        Symbol("run_batch", (_SGL,), "Scheduler"),
        Symbol("process_batch_result", (_SGL,), "Scheduler"),
        Symbol("get_next_batch_to_run", (_SGL,), "Scheduler"),
        Symbol("_add_request_to_queue", (_SGL,), "Scheduler"),
        Symbol("process_input_requests", (_SGL,), "Scheduler"),
        Symbol("calls", (_SGL,), "Scheduler", calls="self.run_batch("),
        Symbol("calls", (_SGL,), "Scheduler", calls="self.process_batch_result("),
        Symbol("calls", (_SGL,), "Scheduler", calls="self.get_next_batch_to_run("),
        Symbol("calls", (_SGL,), "Scheduler", calls="self.process_input_requests("),
        Symbol("calls", (_SGL,), "Scheduler", calls="get_parallel().attn_tp_rank"),
        Symbol("Scheduler", (_SGL,), fields=("waiting_queue", "running_batch", "chunked_req", "attn_tp_rank", "ps")),
        Symbol(
            "ScheduleBatch",
            (_SGL_BATCH,),
            fields=("reqs", "forward_mode", "extend_num_tokens", "extend_lens", "decoding_reqs"),
        ),
        Symbol("retract_decode", (_SGL_BATCH,), "ScheduleBatch"),
        Symbol("Req", (_SGL_BATCH,), fields=("rid", "output_ids", "finished_reason", "finished")),
        Symbol(
            "GenerationBatchResult",
            ("sglang/srt/managers/utils.py", "sglang/srt/managers/scheduler.py"),
            fields=("can_run_cuda_graph",),
        ),
        Symbol("send_output", (f"{_SGL_PARTS}/output_sender.py", _SGL), "SenderWrapper"),
        Symbol("Scheduler", (_SGL,), fields=("send_to_detokenizer",)),
        Symbol("calls", (_SGL,), "Scheduler", calls="self.ipc_channels.send_to_detokenizer"),
        Symbol("_send_one_request", (_SGL_TOKENIZER,), "TokenizerManager"),
        Symbol("_handle_batch_output", (_SGL_TOKENIZER,), "TokenizerManager"),
        *(
            Symbol(name, ("sglang/srt/managers/io_struct.py",), fields=("finished_reasons", "completion_tokens"))
            for name in ("BatchTokenIDOut", "BatchTokenIDOutput", "BatchStrOut", "BatchStrOutput")
        ),
    ),
    "transformers": (
        Symbol("prepare_next_batch", _CB, "ContinuousBatchProcessor"),
        Symbol("update_batch", _CB, "ContinuousBatchProcessor"),
        Symbol("_generation_step", _CB, "ContinuousBatchingManager"),
        Symbol("add_request", _CB, "ContinuousBatchingManager"),
        Symbol("register_result_handler", _CB, "ContinuousBatchingManager"),
        Symbol("deliver_batch", _CB, "OutputRouter"),
        Symbol("add_waiting_request", _CB, "Scheduler"),
        Symbol("set_request_cancellation", _CB, "Scheduler"),
        Symbol("Scheduler", _CB, fields=("active_requests", "waiting_requests")),
        Symbol("ContinuousBatchingManager", _CB, fields=("batch_processor",)),
        Symbol(
            "ContinuousBatchProcessor", _CB, fields=("requests_in_batch", "inputs_and_outputs", "use_async_batching")
        ),
        Symbol(
            "ContinuousBatchingIOs", _CB, fields=("requests_in_batch", "prepare_batch_update", "prepare_batch_tensors")
        ),
        Symbol(
            "ContinuousBatchingAsyncIOs",
            _CB,
            fields=("io_pairs", "current_pair", "prepare_batch_update", "prepare_batch_tensors"),
        ),
        Symbol("HostDeviceIOPair", _CB, fields=("host_io",)),
        Symbol("FutureRequestState", _CB, fields=("state", "has_new_token", "query_length")),
        Symbol(
            "RequestState",
            _CB,
            fields=(
                *("request_id", "tokens_to_process", "prompt_ids", "generated_len", "position_offset"),
                *("_true_initial_tokens", "status"),
            ),
        ),
        Symbol("PagedAttentionCache", _CB, fields=("num_blocks", "get_num_free_blocks", "compute_free_capacity")),
    ),
}


def main() -> None:
    """Brings the table of one server up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=SYMBOLS)
    parser.add_argument("--from", dest="first")
    parser.add_argument("--cache", type=Path, help="keep what was downloaded here")
    options = parser.parse_args()
    file = HERE / f"{options.server}.json"
    table = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        for releases in versions(options.server, options.first or FIRST[options.server]):
            for version in releases:
                with contextlib.suppress(subprocess.CalledProcessError):  # not published in this form
                    table[version] = row(download(options.server, version, cache), SYMBOLS[options.server])
                    print(version, "without", *(name for name, extract in table[version].items() if extract is None))
                    break
            else:
                print(*releases, "not published as source")
    ordered = dict(sorted(table.items(), key=lambda item: key(item[0])))
    file.write_text(json.dumps(ordered, indent=1) + "\n")


def key(version: str) -> tuple[int, ...]:
    """For sorting."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def minor(version: str) -> tuple[int, ...]:
    """What one release is taken of. SGLang's patch releases are what others call minor ones."""
    return key(version)[:2] if not version.startswith("0.5.") else key(version)[:3]


def versions(server: str, first: str) -> list[list[str]]:
    """The releases of each minor version, oldest first; of one, the newest first."""
    printed = pip("index", "versions", server).stdout
    every = re.findall(r"\d+(?:\.\d+)+(?![\w.])", printed.partition("Available versions:")[2].partition("\n")[0])
    wanted = sorted((version for version in every if key(version) >= key(first)), key=key)
    return [sorted(group, key=key, reverse=True) for _, group in groupby(wanted, key=minor)]


def pip(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """This interpreter's pip."""
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})


BACKEND = """
import os, re
def _folder(directory):
    info = open("PKG-INFO").read()
    name, version = (re.search(rf"^{key}: (.+)$", info, re.M)[1] for key in ("Name", "Version"))
    folder = f"{name}-{version}.dist-info"
    os.makedirs(os.path.join(directory, folder))
    with open(os.path.join(directory, folder, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder
def prepare_metadata_for_build_wheel(directory, settings=None):
    return _folder(directory)
def get_requires_for_build_wheel(settings=None):
    return []
"""


def download(server: str, version: str, cache: Path) -> Path:
    """The release. pip asks an sdist's own backend for its name and version, which may need a compiler for that: one of
    ours stands in its place."""
    folder = cache / f"{server}-{version}"
    if not any(folder.glob("*")):
        backend = cache / "backend"
        (backend / "setuptools").mkdir(parents=True, exist_ok=True)
        (backend / "setuptools" / "__init__.py").write_text("")
        (backend / "setuptools" / "build_meta.py").write_text(BACKEND)
        wanted = ("download", "-q", "--no-deps", "--no-build-isolation", *BINARY[server], f"{server}=={version}")
        pip(*wanted, "-d", str(folder), PYTHONPATH=str(backend))
    [file] = folder.iterdir()
    return file


def sources(release: Path) -> Iterator[tuple[str, str]]:
    """Each Python file of a release: its name from the package on, and its text."""
    if release.suffix == ".whl":
        with zipfile.ZipFile(release) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name).decode(errors="replace")
        return
    with tarfile.open(release) as sdist:
        for member in sdist:
            if member.name.endswith(".py") and (file := sdist.extractfile(member)) is not None:
                yield member.name.partition("/")[2], file.read().decode(errors="replace")


def row(release: Path, symbols: tuple[Symbol, ...]) -> dict[str, str | None]:
    """The extract of each symbol; None: the version has none."""
    wanted = {name for symbol in symbols for name in symbol.files}
    texts = {name: text for name, text in sources(release) if name in wanted}
    return {title: extract for symbol in symbols for title, extract in extracts(symbol, texts)}


def extracts(symbol: Symbol, texts: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    """One, or one for each field."""
    files = [texts[name] for name in symbol.files if name in texts]
    if symbol.fields:
        nodes = [node for text in files if (node := find_class(text, symbol.name)) is not None]
        for name in symbol.fields:
            yield f"{symbol.name}.{name}", next((line for node in nodes if (line := field(node, name))), None)
    elif symbol.calls:
        found = any(symbol.calls in text for text in files)
        yield f"{symbol.owner} {symbol.calls}", symbol.calls if found else None
    else:
        found_in = (method(text, symbol.owner, symbol.name) for text in files)
        yield f"{symbol.owner}.{symbol.name}", next((line for line in found_in if line), None)


def find_class(text: str, name: str) -> ast.ClassDef | None:
    """The class of a module."""
    found = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)
    return next(found, None)


def method(text: str, owner: str, name: str) -> str | None:
    """A method's first line, with its arguments."""
    node = find_class(text, owner)
    for each in node.body if node is not None else ():
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
            return f"def {name}({ast.unparse(each.args)})"[:MOST_EXTRACT]
    return None


def field(node: ast.ClassDef, name: str) -> str | None:
    """A field, of a class's body or set in a method of it."""
    for each in ast.walk(node):
        assigned = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        for target in (one for some in assigned for one in getattr(some, "elts", [some])):
            own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
            of_class = isinstance(target, ast.Name) and each in node.body  # a method's variables are no fields
            if (own and target.attr == name) or (of_class and target.id == name):  # type: ignore[attr-defined]
                return ast.unparse(each)[:MOST_EXTRACT]
        if isinstance(each, ast.FunctionDef) and each.name == name:
            return f"def {name}({ast.unparse(each.args)})"[:MOST_EXTRACT]
    return None


if __name__ == "__main__":
    main()
