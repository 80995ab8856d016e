"""What install() puts into the environment for the processes that this one will start, and takes out again."""

from __future__ import annotations

import os


class EnvironmentPatch:
    """Variables for children. Each is put back as it was, unless other code has changed it since."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, str | None]] = {}

    def leave(self, name: str, value: str) -> None:
        """Set a variable, where it has another value."""
        before = os.environ.get(name)
        if before != value:
            os.environ[name] = value
            self._before.setdefault(name, (value, before))

    def take_back(self) -> list[str]:
        """Put all of them back. Returns what could not be, a sentence each."""
        set_by_us, self._before = self._before, {}
        report = []
        for name, (value, before) in set_by_us.items():
            if os.environ.get(name) != value:
                report.append(f"{name} was changed by other code after us: it stays as it is")
            elif before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
        return report
