"""The NodeResourceTopology reporter (spec 02 §3.8)."""
