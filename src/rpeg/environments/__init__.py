"""Where problems come from and how answers are scored: tasks, data files, row order and reward functions."""

__all__: list[str] = []
