"""This node's state: its API objects, its pods, what cgroup is whose, and the reports about it (spec 02 §3, §7)."""
