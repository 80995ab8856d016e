"""``tailwatch nsys``: what stood still while a GPU had nothing to do, from a report of Nsight Systems.

The report, exported to SQLite, holds the kernels and what tailwatch sent by NVTX (csrc/python/nvtx/ranges.h):
pauses, requests, tokens, and clock anchors, by which times of the report and of CLOCK_MONOTONIC are converted.
"""
