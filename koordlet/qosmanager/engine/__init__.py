"""The engine: the node view, what a strategy is, the manager that runs strategies, evictions and notices."""
