"""What `tailwatch demo` does without options."""

from __future__ import annotations

DURATION = 45.0  # seconds measured per arm: three minutes in all
ARMS = ("observe", "freeze", "idle")  # values of the option gc
SEED = 1
SLO = "ttft<=500ms,tpot<=40ms,itl<=100ms@99%"
SHARE_OF_CAPACITY = 0.6
OBJECTS = 720_000  # tracked before traffic; vLLM's and SGLang's processes have 640-800 thousand
CALIBRATION_SECONDS = 6.0
CALIBRATION_REQUESTS = 20_000  # more than any server finishes in that time
WARM_UP_REQUESTS, WARM_UP_CONCURRENCY = 64, 8
