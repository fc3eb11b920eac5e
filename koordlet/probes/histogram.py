"""Histograms of the probes: buckets a factor of two apart (``bpf/histogram.h``), and quantiles of them. Pure.

**Error of a quantile.** Values are placed linearly inside their bucket, so an estimate is within a factor of two of the
true value. Sum, count and mean are exact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koordlet.probes.columns import Ints
from koordlet.probes.layouts import BUCKETS, FIRST_BUCKET_BITS

BOUNDS_NS: Ints = np.left_shift(np.int64(1), FIRST_BUCKET_BITS + np.arange(BUCKETS - 1, dtype=np.int64))
"""Upper bounds of all buckets but the last, which is open."""
_STARTS_NS = np.concatenate([[0.0], BOUNDS_NS.astype(np.float64)])
_ENDS_NS = np.concatenate([BOUNDS_NS.astype(np.float64), [2.0 * BOUNDS_NS[-1]]])


def quantiles(hist: npt.ArrayLike, q: float) -> npt.NDArray[np.float64]:
    """The q-quantile in nanoseconds of each histogram (``[n, BUCKETS]``), NaN for an empty one.

    Interpolated inside the bucket: ``start + (end - start) * rank / count`` (spec 02 §11.1 L2). The open last bucket is
    taken to end at twice its start.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile: {q} is not within 0..1")
    counts = np.asarray(hist, dtype=np.float64)
    cumulative = counts.cumsum(axis=1)
    total = cumulative[:, -1:]
    rank = q * total
    # The first non-empty bucket that reaches the rank: q = 0 is before the first value.
    bucket = np.argmax((cumulative >= rank) & (counts > 0), axis=1)
    row = np.arange(len(counts))
    inside = np.maximum(0.0, rank[:, 0] - (cumulative[row, bucket] - counts[row, bucket]))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = _STARTS_NS[bucket] + (_ENDS_NS[bucket] - _STARTS_NS[bucket]) * inside / counts[row, bucket]
    return np.where(total[:, 0] > 0, value, np.nan)
