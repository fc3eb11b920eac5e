"""Use of the node and of each workload: one reading per tick, and the figures derived from two of them."""
