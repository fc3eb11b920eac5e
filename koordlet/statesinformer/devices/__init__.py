"""The Device reporter (spec 02 §3.9)."""
