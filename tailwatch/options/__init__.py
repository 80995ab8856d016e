"""What a user asks for: options of install(), SLOs, when a trace is written, how much memory a process may take."""
