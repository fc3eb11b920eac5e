"""Rejects the creation of objects in a namespace that doesn't exist or is being deleted."""

from __future__ import annotations

from control.standalone import errors
from control.standalone.kinds import NAMESPACE
from control.standalone.policyinterfaces import AdmissionAttributes
from control.standalone.store import ObjectStore


def check(store: ObjectStore, request: AdmissionAttributes) -> None:
    """Raises StatusError 404 or 403."""
    if request.operation != "CREATE" or not request.kind.namespaced or request.subresource:
        return
    namespace = store.get(NAMESPACE, None, request.namespace)
    if namespace is None:
        raise errors.not_found("", "namespaces", request.namespace)
    if namespace["metadata"].get("deletionTimestamp"):
        name = request.name or str(((request.obj or {}).get("metadata") or {}).get("name", ""))
        why = f"unable to create new content in namespace {request.namespace} because it is being terminated"
        error = errors.forbidden(request.kind.group, request.kind.plural, name, why)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {request.namespace} is being terminated",
            "field": "metadata.namespace",
        }
        error.details = {**error.details, "causes": [cause]}
        raise error
