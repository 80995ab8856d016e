"""What is attached to the host: each module has attach() and detach(), and none imports another's exporter."""
