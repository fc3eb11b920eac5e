"""The net_stall probe: retransmits, softirq time and unread data per cgroup."""
