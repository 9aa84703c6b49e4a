"""What a run leaves behind: its folder, its metrics, its spans, and the protocol of those who watch it."""
