"""Processes of one server that share a directory: joining, its lock, directories made without a name."""
