"""The rules V1-V15, one file per family; each rule is a function from a graph to its problems."""
