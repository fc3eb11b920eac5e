"""The NodeSLO in force (spec 02 §3.6)."""
