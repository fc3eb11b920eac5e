"""The NodeMetric reporter (spec 02 §7)."""
