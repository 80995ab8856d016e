"""Open-loop load: what a server does to requests that come when they come, and not when the last one is answered."""
