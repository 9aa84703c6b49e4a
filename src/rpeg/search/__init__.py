"""The space of plans and its best points."""
