"""A run as one YAML file: its keys, how it is read and checked, and what it is turned into."""

__all__: list[str] = []
