"""The served kinds: a table of the built-in ones, and the set to which CRDs are added at run time.

A row has everything that generic code needs about a kind: group, versions, names, verbs, subresources, and the
switches in which Kubernetes' own kinds differ (whether it has a generation, whether PUT may create it …).
Discovery, routing, the object registry, table rendering and OpenAPI read this table. The CRD controller adds and
removes rows; the HTTP layer only reads. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class ScaleSpec:
    """JSON paths of the numbers of the scale subresource."""

    spec_replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    selector: str = ".status.selector"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One resource of the API. Inside the server it is identified by `key` ("group/plural")."""

    group: str
    versions: tuple[str, ...]  # served versions, the preferred one first
    kind: str
    plural: str
    singular: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    status: bool = False  # has /status, so that the main resource can't write it
    generation: bool = False  # metadata.generation counts spec changes
    scale: ScaleSpec | None = None
    subresources: tuple[str, ...] = ()  # beyond status and scale
    create_on_update: bool = False  # PUT of a missing name creates it
    unconditional_update: bool = True  # PUT without resourceVersion is accepted
    keeps_status_on_create: bool = False
    returns_deleted: bool = False  # DELETE answers with the object, not a Status
    orphans_by_default: bool = False  # DELETE without a policy keeps the dependents
    deprecation: str = ""  # a warning of every response
    immutable_fields: tuple[str, ...] = ()  # top-level fields that can't change
    storage_version: str = ""
    storage_key: str = ""  # key of another kind whose stored objects this kind shows too
    custom: bool = False  # from a CRD
    crd: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)
    key: str = field(init=False, default="")
    stored_as: str = field(init=False, default="")  # the key its objects are stored under

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.group}/{self.plural}")
        object.__setattr__(self, "stored_as", self.storage_key or self.key)

    @property
    def storage_api_version(self) -> str:
        return api_version(self.group, self.storage_version or self.versions[0])

    @property
    def list_kind(self) -> str:
        if self.crd:
            names: Mapping[str, Any] = self.crd["spec"]["names"]
            return str(names.get("listKind") or self.kind + "List")
        return self.kind + "List"

    @property
    def all_subresources(self) -> tuple[str, ...]:
        extra = (("status",) if self.status else ()) + (("scale",) if self.scale else ())
        return extra + self.subresources

    def served_as(self, version: str | None = None) -> str:
        return api_version(self.group, version or self.versions[0])


def api_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


_SCALE = ScaleSpec()
_RC_SCALE = ScaleSpec(selector="")


def _kind(group: str, version: str, kind: str, plural: str, short: str = "", **more: Any) -> ResourceKind:
    return ResourceKind(
        group=group,
        versions=tuple(version.split(",")),
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        short_names=tuple(short.split()),
        **more,
    )


_ALL = ("all",)
_POD_SUB = ("binding", "eviction", "log", "exec", "attach", "portforward", "proxy", "ephemeralcontainers", "resize")
_CREATE = ("create",)
_ADM = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_STORAGE = "storage.k8s.io"
_AUTHZ = "authorization.k8s.io"
_CLUSTER: dict[str, Any] = {"namespaced": False}

BUILTIN: tuple[ResourceKind, ...] = (
    _kind("", "v1", "Binding", "bindings", verbs=_CREATE),
    _kind("", "v1", "ComponentStatus", "componentstatuses", "cs", verbs=("get", "list"), **_CLUSTER,
          deprecation="v1 ComponentStatus is deprecated in v1.19+"),
    _kind("", "v1", "ConfigMap", "configmaps", "cm"),
    _kind("", "v1", "Endpoints", "endpoints", "ep", create_on_update=True,
          deprecation="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    _kind("", "v1", "Event", "events", "ev", create_on_update=True),
    _kind("", "v1", "LimitRange", "limitranges", "limits", create_on_update=True),
    _kind("", "v1", "Namespace", "namespaces", "ns", status=True, subresources=("finalize",), **_CLUSTER,
          verbs=tuple(v for v in ALL_VERBS if v != "deletecollection")),
    _kind("", "v1", "Node", "nodes", "no", status=True, subresources=("proxy",), keeps_status_on_create=True,
          **_CLUSTER),
    _kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", status=True, returns_deleted=True),
    _kind("", "v1", "PersistentVolume", "persistentvolumes", "pv", status=True, returns_deleted=True, **_CLUSTER),
    _kind("", "v1", "Pod", "pods", "po", status=True, generation=True, categories=_ALL, subresources=_POD_SUB,
          returns_deleted=True),
    _kind("", "v1", "PodTemplate", "podtemplates", generation=True, returns_deleted=True),
    _kind("", "v1", "ReplicationController", "replicationcontrollers", "rc", status=True, generation=True,
          scale=_RC_SCALE, categories=_ALL, orphans_by_default=True),
    _kind("", "v1", "ResourceQuota", "resourcequotas", "quota", status=True, returns_deleted=True),
    _kind("", "v1", "Secret", "secrets"),
    _kind("", "v1", "ServiceAccount", "serviceaccounts", "sa", subresources=("token",), returns_deleted=True),
    _kind("", "v1", "Service", "services", "svc", status=True, categories=_ALL, returns_deleted=True,
          subresources=("proxy",)),
    _kind(_ADM, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", generation=True,
          categories=("api-extensions",), **_CLUSTER),
    _kind(_ADM, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", generation=True,
          categories=("api-extensions",), **_CLUSTER),
    _kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds",
          status=True, generation=True, unconditional_update=False, categories=("api-extensions",), **_CLUSTER),
    _kind("apiregistration.k8s.io", "v1", "APIService", "apiservices", status=True,
          unconditional_update=False, categories=("api-extensions",), **_CLUSTER),
    _kind("apps", "v1", "ControllerRevision", "controllerrevisions"),
    _kind("apps", "v1", "DaemonSet", "daemonsets", "ds", status=True, generation=True, categories=_ALL),
    _kind("apps", "v1", "Deployment", "deployments", "deploy", status=True, generation=True, scale=_SCALE,
          categories=_ALL),
    _kind("apps", "v1", "ReplicaSet", "replicasets", "rs", status=True, generation=True, scale=_SCALE,
          categories=_ALL),
    _kind("apps", "v1", "StatefulSet", "statefulsets", "sts", status=True, generation=True, scale=_SCALE,
          categories=_ALL),
    _kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", verbs=_CREATE, **_CLUSTER),
    _kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", verbs=_CREATE, **_CLUSTER),
    _kind(_AUTHZ, "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=_CREATE),
    _kind(_AUTHZ, "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", verbs=_CREATE, **_CLUSTER),
    _kind(_AUTHZ, "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", verbs=_CREATE, **_CLUSTER),
    _kind(_AUTHZ, "v1", "SubjectAccessReview", "subjectaccessreviews", verbs=_CREATE, **_CLUSTER),
    _kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", status=True,
          categories=_ALL),
    _kind("batch", "v1", "CronJob", "cronjobs", "cj", status=True, generation=True, categories=_ALL),
    _kind("batch", "v1", "Job", "jobs", status=True, generation=True, categories=_ALL,
          orphans_by_default=True),
    _kind("coordination.k8s.io", "v1", "Lease", "leases", create_on_update=True, unconditional_update=False),
    _kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", generation=True),
    _kind("events.k8s.io", "v1", "Event", "events", "ev", create_on_update=True, storage_key="/events"),
    _kind("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", status=True, generation=True),
    _kind("networking.k8s.io", "v1", "IngressClass", "ingressclasses", generation=True, **_CLUSTER),
    _kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", generation=True),
    _kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", immutable_fields=("handler",), **_CLUSTER),
    _kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", status=True, generation=True,
          unconditional_update=False),
    _kind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", create_on_update=True,
          immutable_fields=("roleRef",), **_CLUSTER),
    _kind(_RBAC, "v1", "ClusterRole", "clusterroles", create_on_update=True, **_CLUSTER),
    _kind(_RBAC, "v1", "RoleBinding", "rolebindings", create_on_update=True, immutable_fields=("roleRef",)),
    _kind(_RBAC, "v1", "Role", "roles", create_on_update=True),
    _kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", generation=True,
          immutable_fields=("value", "preemptionPolicy"), **_CLUSTER),
    _kind(_STORAGE, "v1", "CSIDriver", "csidrivers", returns_deleted=True, **_CLUSTER),
    _kind(_STORAGE, "v1", "CSINode", "csinodes", returns_deleted=True, **_CLUSTER),
    _kind(_STORAGE, "v1", "CSIStorageCapacity", "csistoragecapacities"),
    _kind(_STORAGE, "v1", "StorageClass", "storageclasses", "sc", returns_deleted=True,
          immutable_fields=("provisioner", "parameters"),
          **_CLUSTER),
    _kind(_STORAGE, "v1", "VolumeAttachment", "volumeattachments", status=True, returns_deleted=True,
          **_CLUSTER),
)  # fmt: skip

# Order in which discovery lists the groups; kubectl resolves an ambiguous short name by it.
GROUP_ORDER = (
    "", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", _AUTHZ, "autoscaling",
    "batch", "networking.k8s.io", "policy", _RBAC, _STORAGE, _ADM, "apiextensions.k8s.io",
    "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io",
)  # fmt: skip

POD = "/pods"
NODE = "/nodes"
NAMESPACE = "/namespaces"
CRD = "apiextensions.k8s.io/customresourcedefinitions"


class Kinds:
    """All served kinds, by key and by group; `generation` counts the changes of the set."""

    def __init__(self) -> None:
        self._by_key = {k.key: k for k in BUILTIN}
        self.generation = 0

    def __iter__(self) -> Iterator[ResourceKind]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> ResourceKind | None:
        return self._by_key.get(key)

    def find(self, group: str, version: str, plural: str) -> ResourceKind | None:
        kind = self._by_key.get(f"{group}/{plural}")
        return kind if kind is not None and version in kind.versions else None

    def by_kind(self, group: str, kind: str) -> ResourceKind | None:
        return next((k for k in self._by_key.values() if k.kind == kind and k.group == group), None)

    def by_gvk(self, api_version: str, kind: str) -> ResourceKind | None:
        """The kind for the apiVersion and kind of an object or an ownerReference."""
        group, _, version = api_version.rpartition("/")
        candidate = self.by_kind(group, kind)
        return candidate if candidate is not None and version in candidate.versions else None

    def groups(self) -> dict[str, list[ResourceKind]]:
        """Kinds by group: built-in groups in discovery order, then the others by name."""
        present: dict[str, list[ResourceKind]] = {}
        for kind in sorted(self._by_key.values(), key=lambda k: (_group_rank(k.group), k.plural)):
            present.setdefault(kind.group, []).append(kind)
        return present

    def add(self, kind: ResourceKind) -> None:
        if self._by_key.get(kind.key) != kind or kind.custom:
            self._by_key[kind.key] = kind
            self.generation += 1

    def discard(self, key: str) -> None:
        if self._by_key.pop(key, None) is not None:
            self.generation += 1


def _group_rank(group: str) -> tuple[int, str]:
    return (GROUP_ORDER.index(group) if group in GROUP_ORDER else len(GROUP_ORDER), group)


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Sort key of Kubernetes' version order: v2, v1, v1beta2, v1beta1, v1alpha1, then anything else by name."""
    stage = 3
    head, minor = version, 0
    for rank, word in enumerate(("beta", "alpha"), start=1):
        front, marker, back = version.partition(word)
        if marker:
            stage, head = rank, front
            minor = int(back) if back.isdigit() else 0
            break
    else:
        stage = 0
    if not (head.startswith("v") and head[1:].isdigit()):
        return (3, 0, 0, version)
    return (stage, -int(head[1:]), -minor, version)
