"""Honest load: planned before it is sent, measured from the plan, and honest about the client itself.

    from tailwatch import loadtest
    result = loadtest.run("http://127.0.0.1:8000", model="m", rate=40, duration=30, slo="ttft<=500ms,tpot<=40ms")
    assert result.valid and result.goodput.held

Stands alone: nothing of it is needed inside the server, and nothing of the server's side here.
"""

from tailwatch.loadtest.bench import Conditions, run, run_workload
from tailwatch.loadtest.goodput import Goodput
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.merging import merged
from tailwatch.loadtest.outcomes import Outcomes
from tailwatch.loadtest.requests import Requests
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.series import Series
from tailwatch.loadtest.validity import ClientHealth, Validity

__all__ = [
    "ClientHealth",
    "Conditions",
    "Goodput",
    "Latencies",
    "Outcomes",
    "Requests",
    "Result",
    "Series",
    "Validity",
    "merged",
    "run",
    "run_workload",
]
