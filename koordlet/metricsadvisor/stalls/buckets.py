"""A probe's histograms as they are exported: every second bound of the probe's, from 8 us to 8.6 s.

A probe counts in 26 buckets a factor of two apart (`probes.snapshot`), which koordlet's own percentiles use. Prometheus
gets them in twelve, a factor of four apart: bucket lines are the largest part of a page that every node makes every
few seconds. Counts are exact at each bound, and so are count and sum; only a percentile that Prometheus interpolates
between two bounds is rougher, within a factor of four instead of two. Pure; used by the probes' collectors at a scrape.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koordlet.probes.schedlatency.snapshot import BOUNDS_NS

_AT = np.arange(3, len(BOUNDS_NS), 2)
"""Which of the probe's bounds are exported; the last bucket, which has none, always is."""
BUCKET_BOUNDS = (*(f"{bound / 1e9:.9g}" for bound in BOUNDS_NS[_AT].tolist()), "+Inf")
_ENDS = np.array([*_AT, len(BOUNDS_NS)])


def exported(counts: npt.NDArray[np.int64 | np.float64]) -> list[list[int]]:
    """Of each histogram (``[n, BUCKETS]``; none of any shape) the cumulative count at each of `BUCKET_BOUNDS`."""
    if not len(counts):
        return []
    reached: list[list[int]] = np.cumsum(counts, axis=1, dtype=np.int64)[:, _ENDS].tolist()
    return reached
