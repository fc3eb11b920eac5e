"""Recommendations: what the containers of a workload should ask for, learned from what they used (spec 04 §9.3).

    NodeMetric, pods --`groups`, `usage`--> `model` (two decayed histograms a container) --`estimate`--> status
    status.podStatus --`admission`--> requests of new pods        --`eviction`--> pods that are far off, one by one

`controller` ties these together on the leader; `admission` runs on every replica, in the pod webhook. All but those
two is pure. Everything is off until the gate `Recommender` is on.
"""
