"""`tailwatch demo`: one real streaming server, the same load under three GC policies, and what each did to users.

What is real: the HTTP server (FastAPI under uvicorn on loopback, OpenAI-style completions and chat over SSE), a small
recurrent model in numpy behind a continuous-batching loop, the sockets, the garbage collector and its pauses. The
client is the load tester (`tailwatch.loadtest`) in another process: open loop, every latency from the *planned* start.

What is emulated, and why:

- the accelerator: each step sleeps `model.DEVICE_SECONDS` besides its numpy work, as a server waits for a device;
- the heap: an imported deep-learning framework and a KV-block pool leave 640-800 thousand tracked objects in vLLM and
  SGLang. Neither is installed here, so `heap` builds a vocabulary, an operator registry and a block pool of that
  size, linked in shuffled order as a heap grown over minutes is. The number is measured and printed;
- the traffic: a seeded schedule with ramps and drains, for CPython counts allocations *net* of deallocations, and a
  perfectly steady queue would hide the collector;
- what requests leave behind: finished requests stay in a bounded response store (with their log-probabilities) and
  their prompts in a bounded prefix cache, both evicted in batches; one request in `engine.CYCLIC_EVERY` is left as a
  reference cycle, the way a forgotten back reference leaves it.

Nothing is collected by hand in the measured window and no threshold is changed: generation 2 runs because CPython's
own rule is met (more than a quarter of the old generation arrived since the last full pass).
"""

from __future__ import annotations

from tailwatch.demo.main import add_arguments, main

__all__ = ["add_arguments", "main"]
