"""Level 1: what the pipeline is. Data, stages and the accesses between them; no device appears here."""
