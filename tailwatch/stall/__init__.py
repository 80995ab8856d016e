"""What the threads that tokens wait for do when they do not go on: loops' clocks and the watchdog."""
