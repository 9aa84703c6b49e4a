"""The engine: plays an event graph on a wall clock with workers that really sample, verify and train."""
