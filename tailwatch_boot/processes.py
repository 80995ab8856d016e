"""Which processes without an app are worth watching: those that do a server's work, not its many short helpers."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARKERS = ("zmq", "grpc", "mpi4py", "torch")
"""A process with one of these that a command of its own started is an engine or a worker, or is connected to one."""

OTHER_SERVERS = {
    "werkzeug.serving": "werkzeug (Flask's development server)",
    "gunicorn.workers.sync": "gunicorn's sync worker",
    "gunicorn.workers.gthread": "gunicorn's gthread worker",
    "gunicorn.workers.ggevent": "gunicorn's gevent worker",
    "gunicorn.workers.gtornado": "gunicorn's tornado worker",
    "aiohttp.web_server": "aiohttp.web",
    "sanic.server": "sanic's own server",
    "robyn": "robyn",
    "tornado.httpserver": "tornado",
    "waitress.server": "waitress",
    "cheroot.server": "cheroot",
    "gevent.pywsgi": "gevent.pywsgi",
    "eventlet.wsgi": "eventlet.wsgi",
}
"""Servers whose requests are not seen, since they serve no ASGI app, by the module whose import shows them."""

_HELPER_MODULES = (
    *("compileall", "ensurepip", "pip", "venv", "virtualenv", "ninja", "tailwatch", "pytest"),
    *("torch.utils.collect_env", "torch._inductor.compile_worker", "vllm.collect_env"),
    *("vllm.model_executor.models.registry", "multiprocessing.resource_tracker", "multiprocessing.forkserver"),
)
_SERVERS = ("uvicorn", "hypercorn", "granian", "gunicorn")  # they are entered through their app
_HELPER_SCRIPTS = ("pip", "pip3", "ninja", "tailwatch", "pytest", "ipython", "jupyter", *_SERVERS)
_HELPER_PATHS = ("torch/_inductor/compile_worker/__main__.py",)

# Targets of multiprocessing processes that come and go, or serve an app, which is entered by itself.
_OTHER_TARGETS = (
    *("concurrent.futures", "multiprocessing", "joblib", "torch.utils.data", "torch._inductor", *_SERVERS),
)


def is_worker(process: Any) -> bool:
    """Whether a multiprocessing child is an engine or a worker of a server, for all we can see before it runs."""
    target = getattr(process, "_target", None)
    target = getattr(target, "func", target)
    module = getattr(target, "__module__", None) or ""
    return not _below(module, _OTHER_TARGETS)


def is_helper() -> bool:
    """Whether the command that started this interpreter is none that serves: a probe, an installer, a compiler."""
    kind, name = command()
    if kind == "-m":
        return _below(name, (*_HELPER_MODULES, *_SERVERS))
    script = name.replace("\\", "/")
    return kind != "script" or script.rpartition("/")[2] in _HELPER_SCRIPTS or script.endswith(_HELPER_PATHS)


def may_serve() -> bool:
    """Whether that command is one that serves, or starts what does."""
    return not is_helper() or command()[1].replace("\\", "/").rpartition("/")[2] in _SERVERS


def command(arguments: Any = None) -> tuple[str, str]:
    """What this interpreter was started to run: ("-c", code), ("-m", module), ("script", path), or ("", "") where it
    was given nothing, or does not record it (before Python 3.10)."""
    rest = list(getattr(sys, "orig_argv", ())[1:] if arguments is None else arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "-" or not argument.startswith("-"):
            return "script", argument
        flag = _flag_with_value(argument)
        if flag and argument.endswith(flag) and rest:
            argument += rest.pop(0)
        if flag == "c" or flag == "m":
            return "-" + flag, argument.partition(flag)[2]
    return "", ""


def _flag_with_value(argument: str) -> str:
    """The first one-letter option in a cluster like -Im that takes a value; it is the last one in it."""
    if argument.startswith("--"):
        return argument if argument == "--check-hash-based-pycs" else ""
    return next((flag for flag in argument[1:] if flag in "cmWX"), "")


def _below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def note(kind: str, value: str) -> None:
    """own_notes.note() in the directory of TAILWATCH_DIR, if there is one. Never raises."""
    directory = os.environ.get("TAILWATCH_DIR", "").strip()
    if directory and sys.platform == "linux":
        try:
            from tailwatch_boot import own_notes  # here: few processes have anything to note

            own_notes.note(directory, kind, value)
        except Exception:
            return
