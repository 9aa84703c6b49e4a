"""Settings of every test."""

from __future__ import annotations

import os

from hypothesis import settings

from rpeg.runtime.homes.ray_cluster import use_settings

# Tests that import every module import Ray, perhaps before those that start it.
use_settings()

# What this machine was calibrated to must not change a number; tests that want profiles of their own name a folder.
os.environ["RPEG_PROFILES"] = ""

# Reproducible, and without time limits per example: the machine that runs the tests may be busy with something else.
settings.register_profile("rpeg", derandomize=True, deadline=None)
settings.load_profile("rpeg")
