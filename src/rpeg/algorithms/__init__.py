"""Algorithms as functions that return a graph. No tensors: a step is described here and done in the runtime."""
