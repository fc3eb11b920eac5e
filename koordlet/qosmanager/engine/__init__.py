"""What runs strategies: the node view, rounds, evictions, reports."""
