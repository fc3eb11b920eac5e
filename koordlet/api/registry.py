"""Group, version, plural and scope of each API kind, and the URL paths derived from them (spec 01 §3.1). Pure.

One row per kind, for the custom resources and the built-in kinds of `koordlet.api.core`. Used by
`koordlet.kube` to find the URL of a struct type, and by `koordlet.api.encoding.crdgen`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from koordlet.api import core
from koordlet.api.core import claims, storage
from koordlet.api.crs import analysis, config, queueing, quota, scheduling, slo, topology
from koordlet.api.encoding.quoting import quoted

_NOT_IN_NAMES = re.compile(r"[/%?#]|^\.\.?$")
"""As in client-go, and what begins a query."""


class InvalidName(ValueError):
    """No object can have this name: in a path it would name something else. References in objects are free text."""


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One resource of the API. `group` is "" for core/v1."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    type: type[msgspec.Struct]
    short_names: tuple[str, ...] = ()
    status_subresource: bool = True

    @property
    def singular(self) -> str:
        """The kind in lower case."""
        return self.kind.lower()

    @property
    def list_kind(self) -> str:
        """The kind of a list of these."""
        return f"{self.kind}List"

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, an object or its subresource.

        Without a namespace the collection of a namespaced kind spans all namespaces. Raises ValueError
        for a namespace on a cluster-scoped kind, a namespaced object without one, or a subresource
        without an object; InvalidName.
        """
        for part in (namespace, name):
            if part and _NOT_IN_NAMES.search(part):
                raise InvalidName(f"{quoted(part)} is not the name of an object")
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} is cluster scoped and has no namespace {namespace!r}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        if subresource and not name:
            raise ValueError(f"{self.kind} subresource {subresource!r} needs a name")
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def _custom() -> Iterator[ApiResource]:
    slo_v1 = ("slo.koordinator.sh", "v1alpha1")
    scheduling_v1 = ("scheduling.koordinator.sh", "v1alpha1")
    sigs_v1 = ("scheduling.sigs.k8s.io", "v1alpha1")
    numa = "topology.node.k8s.io"
    yield ApiResource(*slo_v1, "NodeMetric", "nodemetrics", False, slo.NodeMetric, ("nm",))
    yield ApiResource(*slo_v1, "NodeSLO", "nodeslos", False, slo.NodeSLO, ("nslo",))
    yield ApiResource(*scheduling_v1, "Reservation", "reservations", False, scheduling.Reservation, ("rsv",))
    yield ApiResource(*scheduling_v1, "Device", "devices", False, scheduling.Device, status_subresource=False)
    yield ApiResource(
        *scheduling_v1, "PodMigrationJob", "podmigrationjobs", False, scheduling.PodMigrationJob, ("pmj",)
    )
    yield ApiResource(*scheduling_v1, "DrainNode", "drainnodes", False, scheduling.DrainNode, ("dn",))
    yield ApiResource(*scheduling_v1, "DrainNodeGroup", "drainnodegroups", False, scheduling.DrainNodeGroup, ("dng",))
    yield ApiResource(
        *scheduling_v1, "ClusterNetworkTopology", "clusternetworktopologies", False, scheduling.ClusterNetworkTopology
    )
    yield ApiResource(
        *scheduling_v1, "ScheduleExplanation", "scheduleexplanations", True,
        scheduling.ScheduleExplanation, ("sched-exp",),
    )  # fmt: skip
    yield ApiResource(
        "config.koordinator.sh", "v1alpha1", "ClusterColocationProfile", "clustercolocationprofiles", False,
        config.ClusterColocationProfile, ("ccp",),
    )  # fmt: skip
    yield ApiResource(
        "quota.koordinator.sh", "v1alpha1", "ElasticQuotaProfile", "elasticquotaprofiles", True,
        quota.ElasticQuotaProfile, ("eqp",), status_subresource=False,
    )  # fmt: skip
    yield ApiResource(
        *sigs_v1, "ElasticQuota", "elasticquotas", True, quota.ElasticQuota, ("eq", "eqs"), status_subresource=False
    )
    queueing_v1 = ("scheduling.x-k8s.io", "v1alpha1")
    yield ApiResource(*queueing_v1, "Queue", "queues", True, queueing.Queue)
    yield ApiResource(*queueing_v1, "QueueUnit", "queueunits", True, queueing.QueueUnit)
    yield ApiResource(
        *sigs_v1, "PodGroup", "podgroups", True, scheduling.PodGroup, ("pg", "pgs"), status_subresource=False
    )
    for version, struct in (
        ("v1alpha1", topology.NodeResourceTopology),
        ("v1alpha2", topology.NodeResourceTopologyV1Alpha2),
    ):
        yield ApiResource(
            numa, version, "NodeResourceTopology", "noderesourcetopologies", False, struct,
            ("node-res-topo",), status_subresource=False,
        )  # fmt: skip
    yield ApiResource(
        "analysis.koordinator.sh", "v1alpha1", "Recommendation", "recommendations", True,
        analysis.Recommendation, ("recom",),
    )  # fmt: skip


def _builtin() -> Iterator[ApiResource]:
    for kind, plural, namespaced, core_struct, short, status in (
        ("Pod", "pods", True, core.Pod, ("po",), True),
        ("Node", "nodes", False, core.Node, ("no",), True),
        ("Namespace", "namespaces", False, core.Namespace, ("ns",), True),
        ("ConfigMap", "configmaps", True, core.ConfigMap, ("cm",), False),
        ("Secret", "secrets", True, core.Secret, (), False),
        ("ServiceAccount", "serviceaccounts", True, core.ServiceAccount, ("sa",), False),
        ("Service", "services", True, core.Service, ("svc",), True),
        ("Endpoints", "endpoints", True, core.Endpoints, ("ep",), False),
        ("Event", "events", True, core.Event, ("ev",), False),
        ("PersistentVolume", "persistentvolumes", False, core.PersistentVolume, ("pv",), True),
        ("PersistentVolumeClaim", "persistentvolumeclaims", True, core.PersistentVolumeClaim, ("pvc",), True),
        ("ReplicationController", "replicationcontrollers", True, core.ReplicationController, ("rc",), True),
    ):
        yield ApiResource("", "v1", kind, plural, namespaced, core_struct, short, status)
    for kind, plural, workload, short in (
        ("Deployment", "deployments", core.Deployment, ("deploy",)),
        ("ReplicaSet", "replicasets", core.ReplicaSet, ("rs",)),
        ("StatefulSet", "statefulsets", core.StatefulSet, ("sts",)),
        ("DaemonSet", "daemonsets", core.DaemonSet, ("ds",)),
    ):
        yield ApiResource("apps", "v1", kind, plural, True, workload, short)
    yield ApiResource("batch", "v1", "Job", "jobs", True, core.Job)
    yield ApiResource(
        "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, core.PodDisruptionBudget, ("pdb",)
    )
    # Evictions have no collection: they are POSTed to pods/{name}/eviction.
    yield ApiResource("policy", "v1", "Eviction", "evictions", True, core.Eviction, status_subresource=False)
    yield ApiResource("coordination.k8s.io", "v1", "Lease", "leases", True, core.Lease, status_subresource=False)
    yield ApiResource(
        "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, core.PriorityClass, ("pc",), False
    )
    yield ApiResource(
        "storage.k8s.io", "v1", "StorageClass", "storageclasses", False, core.StorageClass, ("sc",), False
    )
    for kind, plural, namespaced, struct in (
        ("CSINode", "csinodes", False, storage.CSINode),
        ("CSIDriver", "csidrivers", False, storage.CSIDriver),
        ("CSIStorageCapacity", "csistoragecapacities", True, storage.CSIStorageCapacity),
    ):
        yield ApiResource("storage.k8s.io", "v1", kind, plural, namespaced, struct, (), False)
    resource_v1 = ("resource.k8s.io", "v1")
    yield ApiResource(*resource_v1, "ResourceClaim", "resourceclaims", True, claims.ResourceClaim)
    yield ApiResource(
        *resource_v1, "ResourceSlice", "resourceslices", False, claims.ResourceSlice, status_subresource=False
    )
    yield ApiResource(*resource_v1, "DeviceClass", "deviceclasses", False, claims.DeviceClass, status_subresource=False)
    yield ApiResource(
        "node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", False, core.RuntimeClass, status_subresource=False
    )


CUSTOM: tuple[ApiResource, ...] = tuple(_custom())
"""The custom resources; NodeResourceTopology occurs once per version."""

BUILTIN: tuple[ApiResource, ...] = tuple(_builtin())
"""The built-in kinds."""

_BY_TYPE: dict[type, ApiResource] = {resource.type: resource for resource in (*BUILTIN, *CUSTOM)}

BY_GVK: dict[tuple[str, str], ApiResource] = {(r.api_version, r.kind): r for r in (*BUILTIN, *CUSTOM)}
"""(apiVersion, kind) -> resource."""


def resource_for(struct: type) -> ApiResource:
    """The resource of a struct type. Raises KeyError, which names the type, when it is not an API kind."""
    try:
        return _BY_TYPE[struct]
    except KeyError:
        raise KeyError(f"{struct.__name__} is not a kind of the API") from None
