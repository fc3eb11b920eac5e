"""The cluster as columns, and the informers and event handlers that keep them current."""
