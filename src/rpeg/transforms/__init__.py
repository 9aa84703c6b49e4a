"""Rewrites of a graph as values: each knows where it fits, why it does not, and what it keeps."""
