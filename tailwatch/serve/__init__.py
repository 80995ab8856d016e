"""HTTP without the app: a port for metrics, and who may read the page."""
