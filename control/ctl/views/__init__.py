"""Queries and text output of koordctl."""
