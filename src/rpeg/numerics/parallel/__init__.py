"""Models of which every rank of a mesh holds a part."""
