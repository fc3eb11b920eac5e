"""Collectors: from kernel files and probe tables to the metric cache and to Prometheus (spec 02 §5).

- `usage`: one reading per tick gives frozen `Readings`; pure modules derive figures from two of them. - `stalls`: the
collectors of the probes, by subject, with their culprits. - `facts`, `periodic`: facts about the node, and collectors
with a period of their own. - `collector.py`: what collectors share; `advisor.py` runs them; `optional.py` makes those
that a gate or a flag switches
  on, and `conditions.py` reports the state of each; `views.py` formats figures for Prometheus and `/top`.

A rate needs two readings of the same thing. The first reading of a cgroup, a recreated cgroup, or a counter that went
back give no figure.
"""
