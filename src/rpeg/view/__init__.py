"""What a person looks at: the live table and the report of a run."""
