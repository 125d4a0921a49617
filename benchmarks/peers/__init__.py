"""Other engines, run on the same weights."""
