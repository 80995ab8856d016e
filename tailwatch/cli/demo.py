"""``tailwatch demo``: the same load three times, with three policies of the collector."""

from tailwatch.demo import add_arguments, main

ABOUT = "serve a small model on this machine, load it, and compare GC left alone, gc=freeze and gc=idle"
EXAMPLE = "tailwatch demo --json demo.json"
EXITS = {1: "a process of the demo failed", 2: "usage error, or a package is missing"}

__all__ = ["ABOUT", "EXAMPLE", "EXITS", "add_arguments", "main"]
