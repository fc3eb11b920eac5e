"""Rules of single kinds, and which parts of an object a write may change.

Pure functions on dicts, called by the registry during every write. Each function has the generic rule first; tables at
the end name the kinds that differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from control.standalone import errors
from control.standalone.errors import FieldError
from control.standalone.kinds import CRD, NAMESPACE, POD, ResourceKind
from koordlet.api.encoding.quantity import Quantity, QuantityError

Json = dict[str, Any]

CRD_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_SYSTEM_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")

# Subresource -> the fields of spec that it may write.
_PARTS: dict[str, tuple[str, ...]] = {
    "finalize": ("finalizers",),
    "resize": ("containers", "initContainers"),
    "ephemeralcontainers": ("ephemeralContainers",),
}

# core/v1 Event field -> events.k8s.io/v1 field; the other fields have the same name in both.
_EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENT_FIELDS_BACK = {new: old for old, new in _EVENT_FIELDS.items()}


def to_storage(kind: ResourceKind, obj: Json) -> Json:
    """From a served version to the stored one: only apiVersion changes, except that Event fields are renamed."""
    if kind.storage_key:
        obj = {_EVENT_FIELDS_BACK.get(k, k): v for k, v in obj.items()}
        obj["apiVersion"] = "v1"
        return obj
    head = {"apiVersion": kind.storage_api_version, "kind": kind.kind}
    return head | obj | head  # apiVersion and kind come first in the encoded object


def to_version(kind: ResourceKind, obj: Json, version: str | None) -> Json:
    """From the stored version to a served one; changes the private copy `obj`."""
    if kind.storage_key:
        obj = {_EVENT_FIELDS.get(k, k): v for k, v in obj.items()}
    obj["apiVersion"] = kind.served_as(version)
    return obj


def same_bytes(kind: ResourceKind, version: str | None) -> bool:
    """True when the stored bytes can be sent unchanged to a client of `version`."""
    return not kind.storage_key and kind.served_as(version) == kind.storage_api_version


def keep_system_fields(old: Json, new: Json) -> None:
    """Restore the metadata that clients can't write; managedFields stay when the client sent none."""
    old_meta, meta = old["metadata"], new["metadata"]
    for name in _SYSTEM_FIELDS:
        if name in old_meta:
            meta[name] = old_meta[name]
        else:
            meta.pop(name, None)
    meta.pop("selfLink", None)
    meta["resourceVersion"] = old_meta["resourceVersion"]
    if not meta.get("generateName") and old_meta.get("generateName"):
        meta["generateName"] = old_meta["generateName"]
    if "managedFields" not in meta and "managedFields" in old_meta:
        meta["managedFields"] = old_meta["managedFields"]


def set_managers(obj: Json, managers: list[Json] | None) -> None:
    """Set metadata.managedFields; a write without managers has cleared them."""
    if managers:
        obj["metadata"]["managedFields"] = managers
    else:
        obj["metadata"].pop("managedFields", None)


def isolate(kind: ResourceKind, subresource: str, old: Json, new: Json) -> None:
    """Limit a write to its part: /status writes the status, the main resource everything else."""
    if subresource == "status":
        managed = new["metadata"].get("managedFields")
        for name in [n for n in new if n not in ("status", "metadata")]:
            if name not in old:
                del new[name]
        for name, value in old.items():
            if name not in ("status", "metadata"):
                new[name] = value
        if kind.custom:
            new["metadata"] = dict(old["metadata"])
        else:
            for name in ("ownerReferences", "finalizers"):
                _copy_field(old["metadata"], new["metadata"], name)
        if managed is not None:
            new["metadata"]["managedFields"] = managed
        if kind.key == POD and "qosClass" in (old.get("status") or {}) and isinstance(new.get("status"), dict):
            new["status"] = {**new["status"], "qosClass": old["status"]["qosClass"]}
    elif subresource in _PARTS:
        _limit_to_spec_fields(_PARTS[subresource], old, new)
    elif not subresource and kind.status:
        _copy_field(old, new, "status")


def _limit_to_spec_fields(fields: tuple[str, ...], old: Json, new: Json) -> None:
    """Replace `new` by `old`, except for the named fields of its spec."""
    new_spec = dict(new.get("spec") or {})
    managed = new["metadata"].get("managedFields")
    new.clear()
    new.update(old)
    new["spec"] = dict(old.get("spec") or {})
    new["metadata"] = dict(old["metadata"])
    if managed is not None:
        new["metadata"]["managedFields"] = managed
    for name in fields:
        _copy_field(new_spec, new["spec"], name)


def _copy_field(source: Json, target: Json, name: str) -> None:
    if name in source:
        target[name] = source[name]
    else:
        target.pop(name, None)


def prepare_create(kind: ResourceKind, obj: Json) -> None:
    if kind.status and not kind.keeps_status_on_create:
        obj.pop("status", None)
    fill = _ON_CREATE.get(kind.key)
    if fill is not None:
        fill(obj)
    _ON_WRITE.get(kind.key, _nothing)(obj)


def prepare_update(kind: ResourceKind, subresource: str, old: Json, new: Json) -> None:
    _ON_WRITE.get(kind.key, _nothing)(new)
    if kind.key == NAMESPACE and subresource != "finalize":
        # Only /finalize writes these; a PUT without them must not free the namespace.
        spec = new["spec"] = dict(new.get("spec") or {})
        _copy_field(old.get("spec") or {}, spec, "finalizers")


def bump_generation(kind: ResourceKind, subresource: str, old: Json, new: Json) -> None:
    """Count a change of the spec. Binding a pod is no such change."""
    if not (kind.generation or kind.custom) or subresource == "binding":
        return
    skipped = {"metadata", "status", "apiVersion", "kind"} if kind.status else {"metadata", "apiVersion", "kind"}
    before = {k: v for k, v in old.items() if k not in skipped}
    after = {k: v for k, v in new.items() if k not in skipped}
    if before != after:
        new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1


def same(old: Json, new: Json, *, with_managers: bool) -> bool:
    """True when `new` has the content of `old`: then nothing is written and no watcher is woken."""

    def content(obj: Json) -> Json:
        meta = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion")}
        return {**obj, "metadata": {k: v for k, v in meta.items() if v not in ({}, [], None)}}

    if content(old) != content(new):
        return False
    return not with_managers or _managers(old) == _managers(new)


def rewrites_managers(old: Json, new: Json) -> bool:
    """Whether a client itself sets other managers, as kubectl does when it goes over to server-side apply."""
    return bool(_managers(new)) and _managers(old) != _managers(new)


def _managers(obj: Json) -> list[Json]:
    return [{k: v for k, v in m.items() if k != "time"} for m in obj["metadata"].get("managedFields") or []]


def immutable_errors(kind: ResourceKind, old: Json, new: Json) -> list[FieldError]:
    field_errors = []
    for name in kind.immutable_fields:
        if old.get(name) != new.get(name):
            if kind.kind == "PriorityClass":
                text = "Forbidden: may not be changed in an update."
                field_errors.append(FieldError("FieldValueForbidden", name, text))
            else:
                field_errors.append(FieldError("FieldValueInvalid", name, "Invalid value: field is immutable"))
    if old.get("immutable") is True and kind.key in ("/configmaps", "/secrets"):
        for name in ("data", "binaryData", "immutable"):
            if old.get(name) != new.get(name):
                text = "Forbidden: field is immutable when `immutable` is set"
                field_errors.append(FieldError("FieldValueForbidden", name, text))
    old_finalizers = set(old["metadata"].get("finalizers") or [])
    added = [f for f in new["metadata"].get("finalizers") or [] if f not in old_finalizers]
    if added and old["metadata"].get("deletionTimestamp"):
        listed = ", ".join(f'"{f}"' for f in added)
        text = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{listed}}}"
        )
        field_errors.append(FieldError("FieldValueForbidden", "metadata.finalizers", text))
    return field_errors


def refuse_delete(kind: ResourceKind, obj: Json) -> None:
    if kind.key != NAMESPACE:
        return
    name = obj["metadata"]["name"]
    if name in ("default", "kube-system", "kube-public"):
        raise errors.forbidden("", "namespaces", name, "this namespace may not be deleted")
    if obj["metadata"].get("deletionTimestamp") and (obj.get("spec") or {}).get("finalizers"):
        why = (
            "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace "
            "will automatically be purged by the system."
        )
        raise errors.conflict("", "namespaces", name, why)


def _nothing(obj: Json) -> None:
    return None


def _namespace(obj: Json) -> None:
    spec = obj.setdefault("spec", {}) or {}
    obj["spec"] = spec
    spec["finalizers"] = sorted({*(spec.get("finalizers") or []), "kubernetes"})
    obj["status"] = {"phase": "Active"}


def _pod(obj: Json) -> None:
    spec = obj.get("spec") or {}
    obj["status"] = {"phase": "Pending", "qosClass": pod_qos(spec)}
    if spec.get("schedulingGates"):
        condition = {"type": "PodScheduled", "status": "False", "lastProbeTime": None}
        condition |= {"lastTransitionTime": obj["metadata"]["creationTimestamp"], "reason": "SchedulingGated"}
        condition["message"] = "Scheduling is blocked due to non-empty scheduling gates"
        obj["status"]["conditions"] = [condition]


def _pending(obj: Json) -> None:
    obj["status"] = {"phase": "Pending"}


def _job(obj: Json) -> None:
    """A Job selects its pods by its own uid, unless manualSelector is set."""
    spec = obj.get("spec")
    if not isinstance(spec, dict) or spec.get("manualSelector"):
        return
    spec.setdefault("manualSelector", False)
    uid, name = obj["metadata"]["uid"], obj["metadata"].get("name", "")
    template = spec.setdefault("template", {})
    if not isinstance(template, dict):
        return
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    for key, value in (("controller-uid", uid), ("job-name", name)):
        labels.setdefault(f"batch.kubernetes.io/{key}", value)
        labels.setdefault(key, value)
    if not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})


def _api_service(obj: Json) -> None:
    """An APIService without a Service is served here."""
    spec = obj.get("spec")
    obj["status"] = {}
    if isinstance(spec, dict) and spec.get("service") is None:
        condition = {
            "type": "Available",
            "status": "True",
            "lastTransitionTime": obj["metadata"].get("creationTimestamp"),
            "reason": "Local",
            "message": "Local APIServices are always available",
        }
        obj["status"] = {"conditions": [condition]}


def _crd(obj: Json) -> None:
    """Add the finalizer that keeps a deleted CRD until its objects are deleted."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if CRD_CLEANUP not in finalizers:
        finalizers.append(CRD_CLEANUP)


def _crd_names(obj: Json) -> None:
    spec = obj.get("spec")
    names = spec.get("names") if isinstance(spec, dict) else None
    if isinstance(spec, dict) and isinstance(names, dict) and isinstance(names.get("kind"), str):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
        spec.setdefault("conversion", {"strategy": "None"})


_ON_CREATE: dict[str, Callable[[Json], None]] = {
    NAMESPACE: _namespace,
    "/pods": _pod,
    "/persistentvolumes": _pending,
    "/persistentvolumeclaims": _pending,
    "batch/jobs": _job,
    "apiregistration.k8s.io/apiservices": _api_service,
    CRD: _crd,
}
_ON_WRITE: dict[str, Callable[[Json], None]] = {CRD: _crd_names}


def pod_qos(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory of all containers."""
    containers = [c for c in (spec.get("containers") or []) + (spec.get("initContainers") or []) if isinstance(c, dict)]
    any_set, guaranteed = False, bool(containers)
    for container in containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            limit = _amount(limits.get(name))
            request = _amount(requests[name]) if name in requests else limit
            any_set = any_set or bool(request) or bool(limit)
            guaranteed = guaranteed and bool(limit) and request == limit
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amount(quantity: Any) -> Quantity | None:
    """None for an absent quantity and for one that validation will reject."""
    try:
        return None if quantity is None else Quantity(str(quantity))
    except QuantityError:
        return None
