"""RPEG: reinforcement-learning training of reasoning language models as one graph."""

__all__ = ["__version__"]

__version__ = "0.1.0"
