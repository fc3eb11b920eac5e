"""Validation of the kinds with a pod template: Deployment, ReplicaSet, DaemonSet, StatefulSet, Job, CronJob.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.objectmeta import key_errors
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.validation_pod import pod_spec
from control.standalone.schema.validation_probes import NON_NEGATIVE
from control.standalone.schema.validation_selectors import label_selector, labels

Json = Mapping[str, Any]

_PERCENT = re.compile(r"\d+%")
_COUNTS = ("replicas", "minReadySeconds", "revisionHistoryLimit")
_DEFAULT_DEADLINE_SECONDS = 600


def validate_workload(obj: Json, old: Json | None) -> Iterator[FieldError]:
    """Deployment, ReplicaSet, DaemonSet, StatefulSet: the selector matches the template, restartPolicy is Always."""
    spec = obj.get("spec") or {}
    replicas = spec.get("replicas")
    if replicas is not None and replicas < 0:
        yield fe.invalid("spec.replicas", replicas, NON_NEGATIVE)
    yield from _selector(obj, spec)
    if old is not None and (old.get("spec") or {}).get("selector") != (spec.get("selector") or {}):
        yield immutable("spec.selector", spec.get("selector") or {})
    template = spec.get("template") or {}
    yield from template_metadata(template.get("metadata") or {}, "spec.template")
    pod = template.get("spec") or {}
    yield from pod_spec(pod, "spec.template.spec")
    if pod.get("restartPolicy") not in (None, "Always"):
        yield fe.not_supported("spec.template.spec.restartPolicy", pod["restartPolicy"], ("Always",))
    if pod.get("activeDeadlineSeconds") is not None:
        owner = obj.get("kind") if obj.get("kind") in ("DaemonSet", "StatefulSet") else "ReplicaSet"
        message = f"activeDeadlineSeconds in {owner} is not Supported"
        yield fe.forbidden("spec.template.spec.activeDeadlineSeconds", message)
    yield from _roll(obj, spec)
    for field in _COUNTS[1:]:
        if (value := spec.get(field)) is not None and value < 0:
            yield fe.invalid(f"spec.{field}", value, NON_NEGATIVE)
    deadline = spec.get("progressDeadlineSeconds", _DEFAULT_DEADLINE_SECONDS)
    if obj.get("kind") == "Deployment" and deadline <= (spec.get("minReadySeconds") or 0):
        yield fe.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")


def _selector(obj: Json, spec: Json) -> Iterator[FieldError]:
    selector = spec.get("selector") or {}
    if "selector" not in spec:
        yield fe.required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield fe.invalid("spec.selector", selector, f"empty selector is invalid for {str(obj.get('kind')).lower()}")
    wrong = list(label_selector(selector, "spec.selector"))
    yield from wrong
    if wrong:
        yield fe.invalid("spec.selector", selector, "invalid label selector")
        return
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if not labels or any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        yield fe.invalid("spec.template.metadata.labels", labels or None, "`selector` does not match template `labels`")


def template_metadata(meta: Json, path: str) -> Iterator[FieldError]:
    yield from labels(meta.get("labels"), f"{path}.labels")
    for key in meta.get("annotations") or ():
        yield from key_errors(f"{path}.annotations", key.lower())


def _roll(obj: Json, spec: Json) -> Iterator[FieldError]:
    """How a changed template is rolled out."""
    kind = obj.get("kind")
    field = "strategy" if kind == "Deployment" else "updateStrategy"
    strategy = spec.get(field) or {}
    name, roll = strategy.get("type"), strategy.get("rollingUpdate")
    path = f"spec.{field}"
    shown = {"Type": name, "RollingUpdate": roll}
    if kind == "StatefulSet":
        policy = spec.get("podManagementPolicy")
        if policy not in (None, "OrderedReady", "Parallel"):
            yield fe.invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")
        if name not in (None, "RollingUpdate", "OnDelete"):
            yield fe.invalid(path, shown, "must be 'RollingUpdate' or 'OnDelete'")
        partition = (roll or {}).get("partition")
        if partition is not None and partition < 0:
            yield fe.invalid(f"{path}.rollingUpdate.partition", partition, NON_NEGATIVE)
    elif kind == "Deployment" and name == "Recreate":
        if roll is not None:
            message = "may not be specified when strategy `type` is 'Recreate'"
            yield fe.forbidden(f"{path}.rollingUpdate", message)
    elif kind in ("Deployment", "DaemonSet"):
        supported = ("Recreate", "RollingUpdate") if kind == "Deployment" else ("RollingUpdate", "OnDelete")
        if name not in (None, *supported):
            yield fe.not_supported(path, shown, supported)
        elif name == "RollingUpdate":
            yield from _room_to_roll(roll or {}, f"{path}.rollingUpdate", daemon=kind == "DaemonSet")


def _room_to_roll(roll: Json, path: str, *, daemon: bool) -> Iterator[FieldError]:
    unavailable, surge = roll.get("maxUnavailable"), roll.get("maxSurge")
    yield from int_or_percent(unavailable, f"{path}.maxUnavailable")
    yield from int_or_percent(surge, f"{path}.maxSurge")
    none_unavailable, no_surge = _is_zero(unavailable), _is_zero(surge)
    if none_unavailable and no_surge:
        if daemon:
            yield fe.required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")
        else:
            yield fe.invalid(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0")
    elif daemon and not none_unavailable and not no_surge:
        yield fe.invalid(f"{path}.maxSurge", surge, "may not be set when maxUnavailable is non-zero")
    yield from not_over_all(unavailable, f"{path}.maxUnavailable")


def _is_zero(value: Any) -> bool:
    return value is None or value == 0 or (isinstance(value, str) and value.rstrip("%").strip("0") == "")


def int_or_percent(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, int) and value < 0:
        yield fe.invalid(path, value, NON_NEGATIVE)
    elif isinstance(value, str) and not _PERCENT.fullmatch(value):
        message = (
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
            "regex used for validation is '[0-9]+%')"
        )
        yield fe.invalid(path, value, message)


def not_over_all(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, str) and _PERCENT.fullmatch(value) and int(value[:-1]) > 100:
        yield fe.invalid(path, value, "must not be greater than 100%")


def immutable(path: str, value: Any) -> FieldError:
    return fe.invalid(path, value, "field is immutable")


def validate_job(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from _job_spec(obj.get("spec") or {}, "spec")
    if old is not None:
        before, after = old.get("spec") or {}, obj.get("spec") or {}
        for field in ("selector", "completionMode"):
            if before.get(field) != after.get(field):
                yield immutable(f"spec.{field}", after.get(field))
        if not before.get("suspend") and before.get("template") != after.get("template"):
            yield immutable("spec.template", "")


def _job_spec(spec: Json, path: str) -> Iterator[FieldError]:
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if (value := spec.get(field)) is not None and value < 0:
            yield fe.invalid(f"{path}.{field}", value, NON_NEGATIVE)
    for field, supported in (
        ("completionMode", ("NonIndexed", "Indexed")),
        ("podReplacementPolicy", ("Failed", "TerminatingOrFailed")),
    ):
        if spec.get(field) not in (None, *supported):
            yield fe.not_supported(f"{path}.{field}", spec[field], supported)
    pod = (spec.get("template") or {}).get("spec") or {}
    yield from pod_spec(pod, f"{path}.template.spec")
    policy = pod.get("restartPolicy")
    if not policy or policy == "Always":
        yield fe.required(f"{path}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        yield fe.not_supported(f"{path}.template.spec.restartPolicy", policy, ("OnFailure", "Never"))


def validate_cron_job(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    if not spec.get("schedule"):
        yield fe.required("spec.schedule")
    yield from _job_spec((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec")
