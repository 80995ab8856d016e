"""``tailwatch demo``: the same load three times, with three policies of the collector."""

from tailwatch.demo import add_arguments, main

ABOUT = "serve a small model on this machine, load it, and compare GC left alone, gc=freeze and gc=idle"

__all__ = ["ABOUT", "add_arguments", "main"]
