"""``tailwatch demo``: the same load twice, with and without the freeze."""

from tailwatch.demo import add_arguments, main

ABOUT = "serve a small model here, drive it, and show what GC does to its tokens, with and without the freeze"

__all__ = ["ABOUT", "add_arguments", "main"]
