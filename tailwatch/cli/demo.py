"""``tailwatch demo``: the same load twice, with and without the freeze."""

from tailwatch.demo import add_arguments, main

ABOUT = "serve a small model on this machine, load it, and show the delays by GC pauses with and without the freeze"

__all__ = ["ABOUT", "add_arguments", "main"]
