"""Diagrams of the documentation, as SVG."""
