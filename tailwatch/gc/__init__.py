"""The collector of this process: its hook, freezing, idle-time collection, what others do to it."""
