"""Pods and containers of this node, and their cgroups (spec 02 §3.4, §3.5)."""
