"""Which ElasticQuotas the jobs of a namespace may use through a queue (spec 05 §14). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.api import names
from koordlet.api.annotations._base import SETTING, Annotation
from koordlet.api.encoding.wire import WireError

AVAILABLE_QUEUE: Final[Annotation[dict[str, list[str]]]] = Annotation(
    names.ANNOTATION_AVAILABLE_QUEUE, dict[str, list[str]], limits=SETTING
)


BUILT_IN: Final = (names.SYSTEM_QUOTA, names.ROOT_QUOTA)
"""Pods of tenants may not name them either (docs/security.md)."""


class NotPermitted(Exception):
    """The namespace may not use the queue; the text is the reason."""


def permitted(
    queue: str, queue_annotations: Mapping[str, str] | None, namespace_annotations: Mapping[str, str]
) -> tuple[str, ...]:
    """The quotas in the order in which they are tried. `queue_annotations`: None if there is no such Queue; then the
    queue is that of the ElasticQuota with its name. Raises NotPermitted."""
    own = _listed((queue_annotations or {}).get(names.ANNOTATION_AVAILABLE_QUOTA))
    if not own and queue in BUILT_IN:
        raise NotPermitted(f"quota {queue} is not for jobs, because no limit of a tenant covers it")
    own = own or (queue,)
    try:
        by_queue = AVAILABLE_QUEUE.get(namespace_annotations)
    except WireError as error:
        raise NotPermitted(f"the namespace's {error}") from error
    if by_queue is not None:
        if queue not in by_queue:
            raise NotPermitted(f"the namespace may not use queue {queue}")
        own = tuple(quota for quota in by_queue[queue] if quota in own) if by_queue[queue] else own
    allowed = _listed(namespace_annotations.get(names.ANNOTATION_AVAILABLE_QUOTA))
    quotas = tuple(quota for quota in own if not allowed or quota in allowed)
    if not quotas:
        raise NotPermitted(f"the namespace may use no quota of queue {queue}")
    return quotas


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
