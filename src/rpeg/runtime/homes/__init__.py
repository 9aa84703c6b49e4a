"""Homes of workers: where they live and how they are called."""
