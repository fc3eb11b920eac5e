"""The runtime hooks (spec 03 §4), one per file."""
