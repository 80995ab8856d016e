"""What do exemplars cost?

Requests of 100 tokens stamped by hand, with a trace id: exemplars on, against the same with exemplars off; the
difference of the quickest rounds is given per token, and per request. The same where every gap counts as slow, which
is the only kind of token that may itself leave an exemplar.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from harness import REPEATS, Report, Run, bar_of, main, measure

from tailwatch import _hot

TOKENS = 100
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ON, OFF = "exemplars on", "exemplars off"
SLOW = "%s, every gap slow"
BAR_NS = 20.0


def requests(on: bool, *, slow_ns: int) -> Run:
    """ns for a request; n is the number of requests. slow_ns: gaps from there on are slow, 0: as by default."""
    core = _hot.Core("api", 4, (0, 0, 0, 0, 990_000), slow_ns, lambda scope: "", lambda awaitable, stream: awaitable)
    core.exemplify(on, None)

    def run(n: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(n):
            stream = core.stream("model", "/bench", None, "", TRACE)
            token = stream.token
            for _ in range(TOKENS):
                token()
            stream.close()
        return (time.perf_counter_ns() - start) / n

    return run


def report(quick: bool = False) -> Report:
    """Runs everything."""
    cases = {
        OFF: requests(False, slow_ns=0),
        ON: requests(True, slow_ns=0),
        SLOW % OFF: requests(False, slow_ns=1),
        SLOW % ON: requests(True, slow_ns=1),
    }
    gc.disable()
    try:
        samples = measure(cases, number=50 if quick else 500, repeats=5 if quick else REPEATS)
    finally:
        gc.enable()
    made = Report(f"Exemplars: requests of {TOKENS} tokens stamped by hand, with a trace id")
    made.calls = samples.calls()
    by = samples.by_case
    plain, slow = (min(by[on]) - min(by[off]) for on, off in ((ON, OFF), (SLOW % ON, SLOW % OFF)))
    made.bars = [
        bar_of("a token, beyond what it is without", [plain / TOKENS], bar=BAR_NS, unit="ns"),
        bar_of("a token after a slow gap, likewise", [slow / TOKENS], bar=BAR_NS, unit="ns"),
        bar_of("a whole request, beyond what it is without", [plain], unit="ns"),
    ]
    return made


def test_exemplars(benchmark: Any) -> None:
    """A request with exemplars, timed by pytest-benchmark."""
    benchmark.extra_info.update(report(quick=True).as_dict())
    run = requests(True, slow_ns=0)
    assert statistics.median(benchmark.pedantic(lambda: [run(10)], rounds=5)) > 0


if __name__ == "__main__":
    main(report)
