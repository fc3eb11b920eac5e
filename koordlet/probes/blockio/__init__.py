"""The block_io probe: I/O latency per cgroup and disk."""
