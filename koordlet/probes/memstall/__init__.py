"""The mem_stall probe: how long tasks are stalled for lack of memory, per cgroup and kind."""
