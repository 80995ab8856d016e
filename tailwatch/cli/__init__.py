"""The command line: one file or folder for each subcommand."""

from tailwatch.cli.parser import main

__all__ = ["main"]
