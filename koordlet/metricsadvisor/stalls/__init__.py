"""Collectors over the BPF probes: latency, stalls and their culprits."""
