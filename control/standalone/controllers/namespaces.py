"""Empties namespaces that are being deleted, and creates the default objects of new ones.

Deletion: all objects of all namespaced kinds are deleted; the conditions report what remains; when nothing does,
the finalizer `kubernetes` is removed, and with it the namespace. Default objects of each namespace: the service
account `default` and the ConfigMap `kube-root-ca.crt` with the server's CA.
"""

from __future__ import annotations

from typing import Any

from control.standalone.controllers import conditions
from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing, itself
from control.standalone.deletion import DeletionOptions
from control.standalone.errors import StatusError
from control.standalone.kinds import NAMESPACE
from control.standalone.objectmeta import timestamp
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, ObjectRegistry, WriteOptions

Json = dict[str, Any]

FINALIZER = "kubernetes"
RECHECK_SECONDS = 0.5
ROOT_CA, DEFAULT_ACCOUNT = "kube-root-ca.crt", "default"
_STATUS = WriteOptions(subresource="status", field_manager="kube-controller-manager")
_FINALIZE = WriteOptions(subresource="finalize", field_manager="kube-controller-manager")


class NamespaceDeletion(EmbeddedController):
    name = "namespace"

    def watches(self) -> dict[str, Mapper]:
        return {NAMESPACE: itself}

    async def reconcile(self, key: Key) -> float | None:
        name = key[1]
        namespace = self.registry.find(NAMESPACE, None, name)
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return None
        if FINALIZER not in ((namespace.get("spec") or {}).get("finalizers") or ()):
            return None
        failures, left = await self._empty(name)
        if failures or left:
            await self._report(name, failures, left)
            return RECHECK_SECONDS

        def release(obj: Json) -> Json:
            spec = obj.setdefault("spec", {})
            spec["finalizers"] = [each for each in spec.get("finalizers") or () if each != FINALIZER]
            return obj

        await ignore_missing(self.registry.modify(NAMESPACE, None, name, release, SYSTEM, _FINALIZE))
        return None

    async def _empty(self, name: str) -> tuple[list[str], list[Json]]:
        """Delete all content; returns the failures, and the objects that remain."""
        failures: list[str] = []
        left: list[Json] = []
        options = DeletionOptions(propagation_policy="Background")
        for kind in self.registry.kinds:
            if not kind.namespaced or kind.storage_key or "delete" not in kind.verbs:
                continue
            try:
                for entry in self.registry.store.entries(kind.stored_as, name):
                    if not entry.obj["metadata"].get("deletionTimestamp"):
                        await ignore_missing(self.registry.delete(kind.key, name, entry.address[1], SYSTEM, options))
            except StatusError as error:
                failures.append(f"{kind.plural}: {error}")
            left += self.registry.store.list(kind.stored_as, name)
        return failures, left

    async def _report(self, name: str, failures: list[str], left: list[Json]) -> None:
        now = timestamp(self.now)
        counts: dict[str, int] = {}
        finalizer_counts: dict[str, int] = {}
        for obj in left:
            counts[str(obj.get("kind"))] = counts.get(str(obj.get("kind")), 0) + 1
            for finalizer in obj["metadata"].get("finalizers") or ():
                finalizer_counts[finalizer] = finalizer_counts.get(finalizer, 0) + 1
        remaining = ", ".join(f"{kind} has {n} resource instances" for kind, n in sorted(counts.items()))
        finalizers = ", ".join(f"{name} in {n} resource instances" for name, n in sorted(finalizer_counts.items()))
        rows = (
            ("NamespaceDeletionContentFailure", bool(failures), "ContentDeletionFailed", "ContentDeleted",
             "; ".join(failures), "All content successfully deleted, may be waiting on finalization"),
            ("NamespaceContentRemaining", bool(left), "SomeResourcesRemain", "ContentRemoved",
             f"Some resources are remaining: {remaining}", "All content successfully removed"),
            ("NamespaceFinalizersRemaining", bool(finalizers), "SomeFinalizersRemain", "ContentHasNoFinalizers",
             f"Some content in the namespace has finalizers remaining: {finalizers}",
             "All content-preserving finalizers finished"),
        )  # fmt: skip

        def change(obj: Json) -> Json:
            status = obj.setdefault("status", {})
            for kind, bad, reason, good_reason, message, good_message in rows:
                status["conditions"] = conditions.put(
                    status.get("conditions"),
                    kind,
                    "True" if bad else "False",
                    reason if bad else good_reason,
                    message if bad else good_message,
                    now,
                )
            return obj

        await ignore_missing(self.registry.modify(NAMESPACE, None, name, change, SYSTEM, _STATUS))


class NamespaceDefaults(EmbeddedController):
    name = "serviceaccount-and-root-ca"

    def __init__(self, registry: ObjectRegistry, ca_pem: str) -> None:
        super().__init__(registry)
        self._ca_pem = ca_pem

    def watches(self) -> dict[str, Mapper]:
        return {NAMESPACE: itself, "/serviceaccounts": _of_namespace, "/configmaps": _of_namespace}

    async def reconcile(self, key: Key) -> float | None:
        name = key[1]
        namespace = self.registry.find(NAMESPACE, None, name)
        if namespace is None or namespace["metadata"].get("deletionTimestamp"):
            return None
        if self.registry.find("/serviceaccounts", name, DEFAULT_ACCOUNT) is None:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT}}
            await _create(self.registry, "/serviceaccounts", name, account)
        data = {"ca.crt": self._ca_pem}
        live = self.registry.find("/configmaps", name, ROOT_CA)
        if live is None:
            note = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints."
            metadata = {"name": ROOT_CA, "annotations": {"kubernetes.io/description": note}}
            config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await _create(self.registry, "/configmaps", name, config)
        elif live.get("data") != data:
            options = WriteOptions(field_manager="kube-controller-manager")
            write = self.registry.modify("/configmaps", name, ROOT_CA, lambda o: {**o, "data": data}, SYSTEM, options)
            await ignore_missing(write)
        return None


def _of_namespace(change: ObjectChange) -> list[Key]:
    """The namespace of a changed or deleted default object; other objects are ignored."""
    metadata = change.object["metadata"]
    affected = change.type != "ADDED" and metadata["name"] in (ROOT_CA, DEFAULT_ACCOUNT)
    return [("", metadata["namespace"])] if affected else []


async def _create(registry: ObjectRegistry, key: str, namespace: str, obj: Json) -> None:
    try:
        await registry.create(key, namespace, obj, SYSTEM, WriteOptions(field_manager="kube-controller-manager"))
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise
