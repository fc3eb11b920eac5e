"""When a Reservation expires (spec 06 §4.1, §4.8). Pure."""

from __future__ import annotations

from typing import Final

from koordlet.api.crs.reservation import Reservation

DEFAULT_TTL_S: Final = 24 * 3600.0


def expiry(reservation: Reservation) -> float | None:
    """Unix seconds at which it expires; None: never. A ttl of 0 means never, also if `expires` is set. Without ttl and
    `expires` the default ttl of the CRD counts."""
    spec, created = reservation.spec, reservation.metadata.creation_timestamp
    if spec.ttl is not None and spec.ttl.seconds == 0:
        return None
    moments = [] if spec.expires is None else [spec.expires.unix]
    ttl = spec.ttl.seconds if spec.ttl is not None else (DEFAULT_TTL_S if spec.expires is None else None)
    if ttl is not None and created is not None:
        moments.append(created.unix + ttl)
    return min(moments, default=None)
