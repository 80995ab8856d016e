"""The version, read from the installed package's metadata: pyproject.toml is the one place it is written."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("tailwatch")
