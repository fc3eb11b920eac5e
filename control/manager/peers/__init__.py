"""Comparison of the replicas of a workload on different nodes (feature gate PeerComparison, spec 02 §11.3)."""
