"""Probes: loading BPF programs, and reading their tables as typed numpy snapshots.

`openprobes.begin_probes` is the entry point. Each probe has a snapshot type with a `diff` for windows;
`histogram.quantiles` reads histograms, and `culprits` has the matrix of victims and culprits. What each probe measures,
its error and its cost: docs/probes.md.
"""
