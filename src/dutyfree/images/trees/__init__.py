"""Trees of layers on disk: walk, copy, merge, measure. Their content may be hostile."""
