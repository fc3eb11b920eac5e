"""Throttling of best-effort pods that interfere with services."""
