"""Collectors with their own period: CPI, cold pages, GPUs, resctrl."""
