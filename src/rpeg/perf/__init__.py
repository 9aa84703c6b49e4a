"""Seconds and bytes of what a plan does, before it runs."""
