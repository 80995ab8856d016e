"""`tailwatch top`: the processes of one server, live in a terminal.

It reads the shared memory of a group, running or dead, and never writes to its directory: the server does nothing for
it. What it shows lies between two such readings, or, at its first look, between the group's beginning and now.
"""
