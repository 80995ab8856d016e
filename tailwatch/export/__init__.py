"""Exporters: a Snapshot becomes bytes."""
