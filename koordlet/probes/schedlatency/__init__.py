"""The sched_latency probe: run-queue latency per cgroup."""
