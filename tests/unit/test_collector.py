"""Where objects cannot be collected out of band that is said, with the reason, before anything is changed."""

from __future__ import annotations

import gc

import pytest

import tailwatch
from tailwatch import collector, config


@pytest.mark.parametrize("patch", range(5))
def test_the_incremental_collector_is_refused(patch: int) -> None:
    """3.14.0 to 3.14.4, by name, and which one is better."""
    why = collector.refusal((3, 14, patch), free_threaded=False)
    assert f"3.14.{patch} has the incremental collector" in why and "3.14.5" in why


@pytest.mark.parametrize("version", [(3, 13, 7), (3, 14, 0), (3, 14, 10), (3, 15, 2)])
def test_free_threaded_builds_are_refused(version: tuple[int, ...]) -> None:
    """Of whatever version, with their own reason."""
    assert "free-threaded" in collector.refusal(version, free_threaded=True)


@pytest.mark.parametrize(
    "version", [(3, 10, 0), (3, 11, 7), (3, 12, 1), (3, 13, 0), (3, 13, 99), (3, 14, 5), (3, 15, 2)]
)
def test_generational_collectors_are_not(version: tuple[int, ...]) -> None:
    """What of these has lists that are not known falls back by itself, and says so."""
    assert collector.refusal(version, free_threaded=False) == ""


def test_install_says_why_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OptionError that names the option, its source, the reason, and what works instead."""
    before = (list(gc.callbacks), gc.get_threshold(), gc.freeze)
    why = collector.refusal((3, 14, 2), free_threaded=False)
    monkeypatch.setattr(config, "refusal_here", lambda: why)
    with pytest.raises(tailwatch.OptionError, match=r"gc='out-of-band'.*3\.14\.2.*gc='freeze'"):
        tailwatch.install(gc="out-of-band")
    monkeypatch.setenv("TAILWATCH_GC", "out-of-band")
    with pytest.raises(tailwatch.OptionError, match=r"incremental.*from TAILWATCH_GC"):
        tailwatch.install()
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()
    assert before == (list(gc.callbacks), gc.get_threshold(), gc.freeze)
    tailwatch.install(gc="freeze")
    assert tailwatch.uninstall() == []
