"""Validation of pods: immutable fields, and the combination of QoS class, priority class and resources (spec 04 §12).

Pure functions from a pod (and the old pod on update) to field errors. `validatehooks` defines the order of the checks
and adds those that need caches (quotas, enhanced rules). All classes here are the raw ones, without defaulting: a pod
with only a QoS label has no priority class.
"""

from __future__ import annotations

from control.manager.webhooks.errors import forbidden, invalid, required
from koordlet.api import names, priority, qos
from koordlet.api.core import Pod, pod_requests
from koordlet.api.encoding.quantity import ZERO
from koordlet.api.resources import BATCH_RESOURCES

_QOS_PATH = f"labels.{names.LABEL_QOS_CLASS}"
_PRIORITY_PATH = f"labels.{names.LABEL_PRIORITY}"
_IMMUTABLE = "field is immutable"

REFUSED_COMBINATIONS: dict[str, tuple[str, ...]] = {
    qos.BE: (priority.NONE, priority.PROD),
    qos.LSR: (priority.NONE, priority.MID, priority.BATCH, priority.FREE),
}
"""QoS class -> priority classes that it must not be combined with."""


def forbidden_annotations(pod: Pod) -> list[str]:
    """Refuses the annotation that marks the scheduler's internal pods of Reservations."""
    if names.ANNOTATION_RESERVE_POD not in pod.metadata.annotations:
        return []
    path = f"annotations.{names.ANNOTATION_RESERVE_POD}"
    return [forbidden(path, "is reserved for the scheduler's pods of Reservations and cannot be set")]


def class_errors(pod: Pod, old: Pod | None, *, priority_label_may_change: bool) -> list[str]:
    """Immutable fields (on update), then QoS and priority, then required resources (spec 04 §12.2, §12.3)."""
    errors = _changed(pod, old, priority_label_may_change) if old is not None else []
    return errors + _combination(pod) + _colocation_resources(pod) + _whole_cores(pod)


def _changed(pod: Pod, old: Pod, priority_label_may_change: bool) -> list[str]:
    errors = []
    new_qos = qos.raw_qos_class(pod)
    if new_qos != qos.raw_qos_class(old):
        errors.append(invalid(_QOS_PATH, new_qos, _IMMUTABLE))
    new_class = priority.raw_priority_class(pod)
    if new_class != priority.raw_priority_class(old):
        errors.append(invalid("spec.priority", new_class, _IMMUTABLE))
    new_label = pod.metadata.labels.get(names.LABEL_PRIORITY, "")
    if not priority_label_may_change and new_label != old.metadata.labels.get(names.LABEL_PRIORITY, ""):
        errors.append(invalid(_PRIORITY_PATH, new_label, _IMMUTABLE))
    return errors


def _combination(pod: Pod) -> list[str]:
    qos_class, priority_class = qos.raw_qos_class(pod), priority.raw_priority_class(pod)
    if priority_class not in REFUSED_COMBINATIONS.get(qos_class, ()):
        return []
    shown = priority_class or "none"
    reason = f"{names.LABEL_QOS_CLASS}={qos_class} and priorityClass={shown} cannot be used in combination"
    return [forbidden(_QOS_PATH, reason)]


def _colocation_resources(pod: Pod) -> list[str]:
    requests = pod_requests(pod)
    requested = sorted(name for name in BATCH_RESOURCES if requests.get(name))
    qos_class = qos.raw_qos_class(pod)
    if not requested or qos_class == qos.BE:
        return []
    reason = f"a pod that requests {' and '.join(requested)} must be of QoS class BE"
    if qos_class == qos.NONE:
        return [required(_QOS_PATH, reason)]
    return [invalid(_QOS_PATH, qos_class, reason)]


def _whole_cores(pod: Pod) -> list[str]:
    qos_class = qos.raw_qos_class(pod)
    if qos_class not in (qos.LSR, qos.LSE):
        return []
    path = "spec.containers[*].resources.requests.cpu"
    cpu = pod_requests(pod).get(names.RESOURCE_CPU, ZERO)
    if cpu <= ZERO:
        return [required(path, f"a pod of QoS class {qos_class} must request CPUs")]
    if cpu.milli_value() % 1000:
        return [invalid(path, str(cpu), f"the requested CPUs of a pod of QoS class {qos_class} must be an integer")]
    return []
