"""From kernel files and probe tables to the metric cache, one pass a tick (spec 02 §5).

`reader.py` does all the reading of a tick and gives frozen `Readings`; the modules beside it derive figures from two
of those without I/O or clock (`node.py`, `workloads.py`, `besteffort.py`, `pressure.py`, `latency.py`); `advisor.py`
runs the tick, commits one batch, and keeps the latest `Picture` for the views (`views.py`: Prometheus, `/top`).
What a gate or a flag switches on is a collector of its own (`cpi.py`, `coldpages.py`, `resctrl.py`, `storageinfo.py`,
`hostapps.py`, pressure in `stallviews.py`), made in `optional.py`; `conditions.py` says what became of each.

A rate needs two readings of the same thing: the first sight of a cgroup, one that was made anew, or a counter that ran
back give no figure at all.
"""
