"""Where idle-time collection is not possible that is reported, with the reason, before anything is changed."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

import tailwatch
from tailwatch.gc import capabilities, hook
from tailwatch.options import config

GENERATIONAL, INCREMENTAL = 0, 1

INTERPRETERS = [
    # version, gc.get_threshold() as it starts, its collector, whether its lists are known
    ((3, 10, 0), (700, 10, 10), GENERATIONAL, True),
    ((3, 11, 7), (700, 10, 10), GENERATIONAL, True),
    ((3, 12, 1), (700, 10, 10), GENERATIONAL, True),
    ((3, 13, 0), (2000, 10, 10), GENERATIONAL, True),
    ((3, 13, 99), (2000, 10, 10), GENERATIONAL, True),
    ((3, 14, 0), (2000, 10, 0), INCREMENTAL, False),
    ((3, 14, 1), (2000, 10, 0), INCREMENTAL, False),
    ((3, 14, 2), (2000, 10, 0), INCREMENTAL, False),
    ((3, 14, 3), (2000, 10, 0), INCREMENTAL, False),
    ((3, 14, 4), (2000, 10, 0), INCREMENTAL, False),
    ((3, 14, 5), (2000, 10, 10), GENERATIONAL, False),
    ((3, 14, 10), (2000, 10, 10), GENERATIONAL, False),
    ((3, 15, 0), (2000, 10, 10), GENERATIONAL, False),
    ((3, 15, 2), (2000, 10, 10), GENERATIONAL, False),
]


@pytest.mark.parametrize(("version", "thresholds", "kind", "known"), INTERPRETERS)
def test_what_each_interpreter_has(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], thresholds: tuple[int, ...], kind: int, known: bool
) -> None:
    """The incremental collector is refused, by name and with the version that is better; no other is.

    What of the others has lists that are not known falls back by itself.
    """
    why = capabilities.refusal(version, free_threaded=False)
    assert bool(why) is (kind == INCREMENTAL)
    if why:
        assert ".".join(map(str, version)) in why and "incremental" in why and "3.14.5" in why
    assert (version[:2] in capabilities.KNOWN_LISTS) is known
    monkeypatch.setattr(hook, "sys", SimpleNamespace(version_info=version))
    monkeypatch.setattr(hook, "gc", SimpleNamespace(get_threshold=lambda: thresholds))
    assert hook.collector_mode() == kind


@pytest.mark.parametrize("version", [(3, 13, 7), (3, 14, 0), (3, 14, 10), (3, 15, 2)])
def test_free_threaded_builds_are_refused(version: tuple[int, ...]) -> None:
    """Of whatever version, with their own reason."""
    assert "free-threaded" in capabilities.refusal(version, free_threaded=True)


def test_install_gives_the_reason_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OptionError that names the option, its source, the reason, and what works instead."""
    before = (list(gc.callbacks), gc.get_threshold(), gc.freeze)
    why = capabilities.refusal((3, 14, 2), free_threaded=False)
    monkeypatch.setattr(config, "refusal_here", lambda: why)
    with pytest.raises(tailwatch.OptionError, match=r"gc='idle'.*3\.14\.2.*gc='freeze'"):
        tailwatch.install(gc="idle")
    monkeypatch.setenv("TAILWATCH_GC", "idle")
    with pytest.raises(tailwatch.OptionError, match=r"incremental.*from TAILWATCH_GC"):
        tailwatch.install()
    with pytest.raises(tailwatch.NotInstalledError):
        tailwatch.current()
    assert before == (list(gc.callbacks), gc.get_threshold(), gc.freeze)
    tailwatch.install(gc="freeze")
    assert tailwatch.uninstall() == []
