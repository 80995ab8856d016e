"""Hypothesis profiles: "quick" by default, "thorough" with HYPOTHESIS_PROFILE=thorough."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=60)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
