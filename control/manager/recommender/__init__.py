"""Recommendations: requests for the containers of a workload, computed from their past usage (spec 04 §9.3).

    NodeMetric, pods --`targets`, `usage`--> `model` (two decayed histograms per container) --`estimate`--> status
    status.podStatus --`admission`--> requests of new pods     --`eviction`--> evicts pods out of bounds, one by one

`controller` runs on the leader and combines these modules; `admission` runs on every replica, in the pod webhook. The
modules that do I/O are `controller`, `admission` and `lineage`. The recommender is off unless feature gate
`Recommender` is on.
"""
