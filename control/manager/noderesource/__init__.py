"""Overcommitted (batch and mid) resources of nodes, and the other fields that the manager writes on Nodes and
NodeResourceTopologies (spec 04 §6, docs/noderesource.md).

All modules but `controller` and `metrics` are pure; only `controller` accesses the API server.
"""
