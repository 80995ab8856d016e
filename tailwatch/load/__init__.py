"""Honest load: planned before it is sent, measured from the plan, and honest about the client itself."""
