"""Level 2 and 3: where and how a graph runs (plan), what waits for what (event graph), and the loop that plays it."""
