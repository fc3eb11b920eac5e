"""Explanations of scheduling decisions for users (spec 05 §7)."""
