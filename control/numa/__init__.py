"""CPUs and NUMA zones of a node: which of them a pod gets (spec 06 §2). Pure.

Sets of CPUs, cores' CPUs and zones are bit masks: bit n stands for CPU n, or for the zone at position n of the node's
list of zones.
"""
