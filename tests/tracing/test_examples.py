"""The examples of traces make files that the trace_processor reads."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "traces"
Load = Callable[..., Any]


def run(name: str, out: Path) -> None:
    """Runs one of them."""
    done = subprocess.run([sys.executable, str(EXAMPLES / name), str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_plain(tmp_path: Path, load: Load) -> None:
    """Two requests of 40 tokens, forty steps with gaps between them, a full collection with arrows to both; and the
    query of docs/traces.md finds it."""
    out = tmp_path / "out.pftrace"
    run("plain.py", out)
    answers = load(out)
    counts = dict(answers.rows("select name, count(*) as n from slice group by name"))
    assert counts["request"] == 2
    assert counts["token"] + counts["first token"] == 80
    assert (counts["decode"], counts["host gap"]) == (40, 39)
    sql, _ = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "traces.md").read_text(), re.DOTALL)
    collections = answers.rows(sql)
    assert max(requests for _, _, requests, _ in collections) == 2


def test_with_torch(tmp_path: Path, load: Load) -> None:
    """torch's operators stand beside our tokens, steps and collections."""
    pytest.importorskip("torch", reason="pip install torch (the CPU build is enough)")
    out = tmp_path / "out.pftrace"
    run("with_torch.py", out)
    counts = dict(load(out).rows("select name, count(*) as n from slice group by name"))
    assert counts["token"] + counts["first token"] == 100
    assert counts["aten::tanh"] == counts["decode"] == 100
    assert counts["gc2"] >= 5
