"""Manifests that koordctl applies and that deploy/ contains."""
