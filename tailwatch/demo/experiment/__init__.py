"""`tailwatch demo --experiment`: the experiment that this project comes from, on the demo's server.

A trace excerpt is replayed, scaled to a share of what the server can do, on five servers by turns: the freeze with fast
SSE, the freeze alone, neither, neither with a smaller batch, and idle-time collection. Each run has a
fresh server process, all runs of a block have the same schedule, and blocks alternate their order. The run is the unit:
each difference is computed from pairs of runs, with an interval.

The excerpt is generated with the law of the Azure LLM inference trace 2023 (conversations); no line of it is used.
Prompts and answers are cut to what the demo's model takes. Every latency is the client's, from the planned start; the
server's own view of the same requests stands beside it.
"""
