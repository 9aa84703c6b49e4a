"""Sizes of models: what their weights are made of."""
