"""Histograms of the probes as they are exported: every second bound, from 8 us to 8.6 s. Pure.

A probe counts in 26 buckets a factor of two apart (`probes.histogram`); koordlet's own percentiles use those.
Prometheus gets twelve, a factor of four apart: bucket lines are the largest part of a page that every node serves every
few seconds. Counts are exact at each bound, and so are count and sum. Only a percentile that Prometheus interpolates
between two bounds is less accurate: within a factor of four instead of two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koordlet.probes.histogram import BOUNDS_NS

_EXPORTED = np.arange(3, len(BOUNDS_NS), 2)
"""Indices of the exported bounds; the last bucket, which is open, is always exported."""
BUCKET_BOUNDS = (*(f"{bound / 1e9:.9g}" for bound in BOUNDS_NS[_EXPORTED].tolist()), "+Inf")
_ENDS = np.array([*_EXPORTED, len(BOUNDS_NS)])


def exported(counts: npt.NDArray[np.int64 | np.float64]) -> list[list[int]]:
    """For each histogram (``[n, BUCKETS]``; of any shape when n is 0) the cumulative count at each of
    `BUCKET_BOUNDS`."""
    if not len(counts):
        return []
    cumulative: list[list[int]] = np.cumsum(counts, axis=1, dtype=np.int64)[:, _ENDS].tolist()
    return cumulative
