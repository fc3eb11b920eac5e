"""The culprit matrix that several probes share: (victim, culprit) -> (nanoseconds, count).

`reader` reads the table of ``bpf/culprit_matrix.h``, `matrix` is the data type, `window` the matrix of the last
seconds. `slots` and `owners` map the table's row numbers to cgroup ids.
"""
