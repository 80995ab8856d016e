"""What the demo is doing: a live bar on a terminal, one line per phase elsewhere. Both on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from types import TracebackType


class Progress:
    """Phases, one after the other; a phase may have a length in seconds."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description:<36}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        self._bars.stop()

    def begin(self, name: str, seconds: float | None = None) -> None:
        """The last phase is over, this one begins."""
        self._end()
        self._task = self._bars.add_task(name, total=seconds, note="")
        if not self._console.is_terminal:
            self._console.print(name, highlight=False)

    def tell(self, seconds: float, done: int, flying: int) -> None:
        """How far the phase is."""
        if self._task is not None:
            note = f"{done} done, {flying} in flight"
            self._bars.update(self._task, completed=max(0.0, seconds), note=note)

    def _end(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            total = task.total if task.total is not None else 1.0
            self._bars.update(self._task, total=total, completed=total)
            self._bars.stop_task(self._task)
