"""The net_stall probe: retransmits, softirq time, unread data per cgroup."""
