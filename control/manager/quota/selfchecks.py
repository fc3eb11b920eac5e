"""Validation of a single ElasticQuota (spec 04 §16.3). Pure."""

from __future__ import annotations

from control.manager.webhooks.errors import forbidden, invalid
from control.quota.lists import excess, negative, shown
from koordlet.api import names
from koordlet.api.annotations import quota as annotation
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import WireError
from koordlet.api.resources import Resources

_WEIGHT = f"annotations.{names.ANNOTATION_QUOTA_SHARED_WEIGHT}"


def self_error(quota: ElasticQuota) -> str | None:
    """The first error in amounts and annotations, or None."""
    annotations, spec = quota.metadata.annotations, quota.spec
    try:
        weight = annotation.SHARED_WEIGHT.get(annotations) or {}
        strict = annotation.STRICT_CHECK_KEYS.get(annotations) or []
        annotation.NAMESPACES.get(annotations)
    except WireError as error:
        return str(error)
    for path, amounts in (("spec.max", spec.max), ("spec.min", spec.min), (_WEIGHT, weight)):
        if below := negative(amounts):
            return invalid(path, shown(amounts, below), "must not be negative")
    return _min_error(spec.min, spec.max) or _used_error(strict, quota.status.used, spec.max)


def _min_error(lower: Resources, upper: Resources) -> str | None:
    if missing := sorted(lower.keys() - upper.keys()):
        return forbidden("spec.min", f"{', '.join(missing)} is not in spec.max")
    if above := excess(lower, upper):
        return invalid("spec.min", shown(lower, above), f"is more than spec.max {shown(upper, above)}")
    return None


def _used_error(strict: list[str], used: Resources, upper: Resources) -> str | None:
    for key in strict:
        if key in used and key not in upper:
            return forbidden("spec.max", f"{key} is in use and cannot be removed")
        if key in used and upper[key] < used[key]:
            return invalid("spec.max", shown(upper, [key]), f"is less than the used amount {shown(used, [key])}")
    return None
