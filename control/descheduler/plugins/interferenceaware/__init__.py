"""Moves pods when interference with a service lasts although the node acts. Not in Koordinator."""
