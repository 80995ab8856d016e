"""What the compiled modules do for the encoders and the load tester, in Python, for systems other than Linux.

Slower, and with the same results: tests run both on the same bytes. What watches a process has no twin here.
"""
