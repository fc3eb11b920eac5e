"""Throttling best-effort pods that interfere with services."""
