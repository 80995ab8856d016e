"""Metrics as Prometheus reads them, with those of the app's own registry."""
