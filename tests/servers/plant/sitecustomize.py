"""Lets prove.py into every interpreter of the server it runs, by PYTHONPATH: the sitecustomize of ``tailwatch run``
imports this one after itself, as it would a host's own."""

import os

if os.environ.get("PLANT_DIR"):
    import planted

    planted.begin(os.environ["PLANT_DIR"])
