"""LowNodeLoad: moves pods from nodes with high measured usage to nodes with low usage (spec 07 §6)."""
