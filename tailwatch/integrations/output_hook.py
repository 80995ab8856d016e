"""Tokens on their way through the API process: where a server hands the outputs of one engine step to its requests,
each stream of ours gets the engine's stamp of that step, and when its output came and was processed.

Methods of its classes are wrapped where they stand: the one that registers a request, which runs in the task that
serves it, and those that hand results on. They do what they did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from tailwatch import _hot
from tailwatch.integrations.engine_steps import named

_FORGET_EVERY = 256  # requests registered between two looks for streams that ended without a last output


Around = Callable[[FunctionType], Any]
"""Makes what stands for a method."""


@dataclass(frozen=True, slots=True)
class OutputPath:
    """The methods of a module, and what stands around them: {"Class.method": ...}, made once for a hook."""

    module: str
    wrappers: Callable[[OutputHook], Mapping[str, Around]]


class OutputHook:
    """Wraps the output path of a server that is loaded.

    Args:
        paths: all that are known.
        core: of this process.
        stream: that of the request that the calling task serves, None where it serves none.
        failed: called inside the handler of an exception of ours.
        note: called with a sentence for the doctor.
    """

    def __init__(
        self,
        paths: tuple[OutputPath, ...],
        core: _hot.Core,
        stream: Callable[[], _hot.Stream | None],
        failed: Callable[[], object],
        note: Callable[[str], object],
    ) -> None:
        self._waiting = list(paths)
        self._core = core
        self._stream = stream
        self._failed = failed
        self._note = note
        self._streams: dict[str, _hot.Stream] = {}
        self._registered = 0
        self._wrapped: list[tuple[str, type, str, FunctionType, Any]] = []
        self._inert = False

    def active(self) -> bool:
        """Whether anything asks for the stream."""
        return bool(self._wrapped)

    @property
    def names(self) -> tuple[str, ...]:
        """What is wrapped, dotted names."""
        return tuple(where for where, *_ in self._wrapped)

    def wrap_loaded(self) -> None:
        """Wrap what is loaded by now. Cheap where nothing is; never raises."""
        for path in [each for each in self._waiting if each.module in sys.modules]:
            module = sys.modules[path.module]
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            try:
                self._waiting.remove(path)
            except ValueError:  # another thread has just wrapped it
                continue
            self._wrap(path, module)

    def undo(self) -> list[str]:
        """Put everything back. Returns what could not be undone, a sentence each."""
        self._inert = True
        wrapped, self._wrapped = self._wrapped, []
        self._streams.clear()
        return list(_put_back(wrapped))

    def expect(self, request_id: Any, interval: int = 0) -> None:
        """A request was registered by that name, a str, in the task that serves it. interval: tokens for which each of
        its messages but the first waits. Never raises."""
        try:
            stream = None if self._inert else self._stream()
            if stream is None:
                return
            self._core.expect(stream, request_id, interval)
            self._streams[request_id] = stream
            self._registered += 1
            if self._registered % _FORGET_EVERY == 0:  # of those that were aborted no output came
                self._forget([name for name, each in list(self._streams.items()) if each.closed])
        except Exception:
            self._failed()

    def expect_of(self, attribute: str, candidates: Iterable[Any], interval: int = 0) -> None:
        """As expect(), of the first of some objects that has an id by that attribute. Never raises, whatever they
        are."""
        try:
            if not self._inert:
                ids = (getattr(each, attribute, None) for each in candidates)
                self.expect(next((found for found in ids if found is not None), None), interval)
        except Exception:
            self._failed()

    def expects(self, request_id: Any) -> bool:
        """Whether outputs of that request are some stream's. Never raises."""
        return isinstance(request_id, str) and request_id in self._streams

    def received(self, outputs: list[Any], key: float, came: int) -> None:
        """Outputs of a step were processed: a list of objects with ``request_id`` and ``finish_reason``. key: the stamp
        of their step, monotonic seconds; came: when they did, ns. Never raises."""
        try:
            if not self._inert and self._streams:
                self._forget(self._core.received(self._streams, outputs, key, came))
        except Exception:
            self._failed()

    def received_message(self, message: Any, came: int) -> None:
        """Outputs of a step came in a message that has no stamp: lists ``rids``, ``finished_reasons`` and
        ``completion_tokens``, how many each request has by then; an embedding has none of the last. came: when, ns.
        Never raises, whatever it is."""
        try:
            if self._inert or not self._streams:
                return
            if (made := getattr(message, "completion_tokens", None)) is not None:
                ids, reasons = message.rids, message.finished_reasons
                self._forget(self._core.received_message(self._streams, ids, reasons, made, came))
        except Exception:
            self._failed()

    def failed(self) -> None:
        """Called inside the handler of an exception of ours."""
        self._failed()

    def _wrap(self, path: OutputPath, module: ModuleType) -> None:
        wrappers = path.wrappers(self)
        found = {name: _method(module, name) for name in wrappers}
        if missing := [name for name, (_, original) in found.items() if original is None]:
            lacks = f"{named(path.module)}: {path.module} has no {' and no '.join(missing)}"
            self._note(f"{lacks}: the engine's delays are not separated from others")
            return
        for name, around in wrappers.items():
            owner, original = found[name]
            assert isinstance(owner, type) and isinstance(original, FunctionType)  # as checked above
            ours, method = around(original), name.rpartition(".")[2]
            setattr(owner, method, ours)
            self._wrapped.append((f"{path.module}.{name}", owner, method, original, ours))

    def _forget(self, ended: list[str] | None) -> None:
        for name in ended or ():
            self._streams.pop(name, None)


def _method(module: ModuleType, name: str) -> tuple[Any, FunctionType | None]:
    owner, _, method = name.partition(".")
    of = getattr(module, owner, None)
    original = vars(of).get(method) if isinstance(of, type) else None
    return of, original if isinstance(original, FunctionType) else None


def _put_back(wrapped: list[tuple[str, type, str, FunctionType, Any]]) -> Iterator[str]:
    for where, owner, name, original, ours in reversed(wrapped):
        if vars(owner).get(name) is ours:
            setattr(owner, name, original)
        else:
            yield f"{where} was replaced by other code after us: ours inside it only hands on"
