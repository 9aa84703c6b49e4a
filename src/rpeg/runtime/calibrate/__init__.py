"""Measure this machine: what `rpeg calibrate --host` does, and what short real runs on it take."""
