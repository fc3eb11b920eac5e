"""Reservations for scheduler, controllers and tools (spec 06 §4): parsing, matching of owners, arithmetic. Pure.

`model` parses an object into bounded data, `reservepod` shows it as the pod that is scheduled for it, `matching`
decides which pods may use it, `amounts` computes what is left in it and what fits.
"""
