"""What tests share: child processes, waiting, ports, file systems, real servers, and the limits of a test run."""
