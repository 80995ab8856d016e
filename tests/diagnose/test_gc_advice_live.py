"""The doctor's advice is taken: what it predicted is what is saved, within what the same run differs from itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailwatch.gc.capabilities import KNOWN_LISTS

pytestmark = pytest.mark.integration

WORKLOAD = Path(__file__).with_name("advice_workload.py")


def day(policy: str) -> dict[str, Any]:
    """One run in a fresh process."""
    done = subprocess.run([sys.executable, str(WORKLOAD), policy], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
@pytest.mark.alone  # it compares how long runs of the same load took
@pytest.mark.timeout(240)  # three runs, of three seconds each where nothing else runs
@pytest.mark.skipif(sys.version_info[:2] not in KNOWN_LISTS, reason="no slices: the collector's lists are not known")
def test_the_advised_policy_saves_what_was_predicted() -> None:
    """Watched under observe, run again as advised: the saving is in the interval. Two runs that are the same differ
    by what the machine does meanwhile: the interval is wider by that. What was collected where is no matter of time."""
    control, observed = day("observe"), day("observe")
    saving = observed["saving"]
    assert (saving["policy"], saving["role"], saving["instead"]) == ("idle", "worker", "observe")
    (finding,) = [each for each in observed["findings"] if each["rule"] == "gc-policy"]
    assert finding["advice"] == "TAILWATCH_GC=idle for the worker process"
    advised = day(saving["policy"])
    assert observed["tokens"] == control["tokens"] == advised["tokens"]
    assert observed["full"] > 0 and observed["collections"]["automatic"] > 50 and observed["slices"] == 0
    assert advised["full"] == 0 and advised["slices"] > 10 and advised["collections"]["automatic"] < 10
    noise = abs(observed["delay"] - control["delay"])
    saved = observed["delay"] - advised["delay"]
    assert saving["low"] - noise <= saved <= saving["high"] + noise
    assert not [each for each in advised["findings"] if each["rule"] in ("gc-policy", "gc-interference", "gc-fallback")]
