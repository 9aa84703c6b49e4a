"""Settings of every test."""

from __future__ import annotations

from hypothesis import settings

# Reproducible, and without time limits per example: the machine that runs the tests may be busy with something else.
settings.register_profile("rpeg", derandomize=True, deadline=None)
settings.load_profile("rpeg")
