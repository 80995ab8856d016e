"""``tailwatch nsys``: what stood still while a GPU had nothing to do, from a report of Nsight Systems.

The report, exported to SQLite, holds the kernels and what tailwatch told it by NVTX (csrc/python/nvtx/ranges.h):
pauses, requests, tokens, and clock anchors, by which a time of the report and CLOCK_MONOTONIC are told from each other.
"""
