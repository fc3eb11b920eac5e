"""The block_io probe: requests, waiting and throttling per cgroup and disk."""
