"""Collectors with a period of their own: CPI, cold pages, GPUs, resctrl."""
