"""The sched_latency probe: how long tasks wait for a CPU, per cgroup, and because of which cgroup."""
