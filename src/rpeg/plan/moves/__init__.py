"""Rewrites of a plan as values, with the same form as those of graphs: where and how work runs, never what it is."""
