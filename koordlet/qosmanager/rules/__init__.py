"""Calculations that strategies and runtime hooks share. Pure."""
