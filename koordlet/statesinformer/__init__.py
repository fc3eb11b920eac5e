"""This node's state: its API objects, its pods, the owner of each cgroup, and koordlet's reports (spec 02 §3, §7)."""
