"""Random pods over the features that kube-scheduler's default plugins read."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
APPS: Final = ("web", "db", "job")
IMAGES: Final = {"registry/small:1": 30 << 20, "registry/large:1": 900 << 20, "registry/huge:1": 3 << 30}
Body = dict[str, Any]


class PodSpecs:
    """Pods of one world."""

    def __init__(self, rng: Random, nodes: Sequence[str], claims: Sequence[str]) -> None:
        self._rng = rng
        self._nodes = nodes
        self.claims = list(claims)
        """The claims that further pods may use."""

    def bound(self, name: str, node: str) -> Body:
        """A pod on a node: mostly of low priority, at times with anti-affinity and ports."""
        pod = self._pod(name, affinities=0.25, priorities=(None, 0, 1, 5))
        pod["spec"]["nodeName"] = node
        if self._rng.random() < 0.2:
            pod["status"] = self._resizing(pod["spec"])
        return pod

    def _resizing(self, spec: Body) -> Body:
        """A status with granted and applied resources, which differ from the spec during a resize."""
        rng = self._rng

        def amounts() -> Body:
            return {"cpu": rng.choice(("100m", "500m", "1")), "memory": rng.choice(("100Mi", "1Gi"))}

        status: Body = {}
        for kind in ("containers", "initContainers"):
            status[kind[:-1] + "Statuses"] = [
                {"name": container["name"], "ready": True, "restartCount": 0, "image": "i", "imageID": "",
                 "resources": {"requests": amounts()}, "allocatedResources": amounts()}
                for container in spec.get(kind, ())
            ]  # fmt: skip
        reason = rng.choice(("", "Deferred", "Infeasible"))
        if reason:
            status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
        return status

    def pending(self, name: str) -> Body:
        pod = self._pod(name, affinities=0.5, priorities=(None, None, 0, 5, 10, 10))
        rng, spec = self._rng, pod["spec"]
        if rng.random() < 0.25:
            spec["nodeSelector"] = {"disk": rng.choice(("ssd", "hdd"))}
        if rng.random() < 0.25:
            spec["topologySpreadConstraints"] = [self._spread() for _ in range(rng.choice((1, 1, 2)))]
            keys = [
                (constraint["topologyKey"], constraint["whenUnsatisfiable"])
                for constraint in spec["topologySpreadConstraints"]
            ]
            if len(set(keys)) < len(keys):
                del spec["topologySpreadConstraints"][1]
        if rng.random() < 0.05:
            spec["schedulingGates"] = [{"name": "example.com/wait"}]
        if rng.random() < 0.05:
            spec["preemptionPolicy"] = "Never"
        if rng.random() < 0.04:
            required = {"nodeSelectorTerms": [{"matchFields": [self._field()]}]}
            node_affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
            node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
        return pod

    def _pod(self, name: str, *, affinities: float, priorities: Sequence[int | None]) -> Body:
        rng = self._rng
        labels = {"app": rng.choice(APPS)}
        if rng.random() < 0.4:
            labels["tier"] = rng.choice(("front", "back"))
        if rng.random() < 0.3:
            labels["version"] = rng.choice(("1", "2"))
        namespace = rng.choice(("default", "default", "default", "blue", "green"))
        spec: Body = {"containers": [self._container("main")], "terminationGracePeriodSeconds": 3600}
        if rng.random() < 0.15:
            spec["containers"].append(self._container("side"))
        if rng.random() < 0.15:
            spec["initContainers"] = [self._container("init")]
            if rng.random() < 0.5:
                spec["initContainers"][0]["restartPolicy"] = "Always"
        if rng.random() < 0.05:
            spec["resources"] = {"requests": {"cpu": rng.choice(("1500m", "3500m")), "memory": "3Gi"}}
        if rng.random() < 0.35:
            spec["tolerations"] = [self._toleration()]
        affinity = self._affinity() if rng.random() < affinities else {}
        if affinity:
            spec["affinity"] = affinity
        priority = rng.choice(priorities)
        if priority is not None:
            spec["priority"] = priority
        if namespace == "default" and (volumes := self._volumes()):
            spec["volumes"] = volumes
        meta = {"name": name, "namespace": namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _container(self, name: str) -> Body:
        rng = self._rng
        requests: dict[str, str] = {}
        if rng.random() < 0.8:
            requests["cpu"] = rng.choice(("50m", "100m", "250m", "250m", "500m", "1", "2"))
        if rng.random() < 0.7:
            requests["memory"] = rng.choice(("64Mi", "100Mi", "256Mi", "500Mi", "1Gi", "3Gi"))
        if rng.random() < 0.1:
            requests["ephemeral-storage"] = rng.choice(("100Mi", "2Gi"))
        limits: dict[str, str] = {}
        if rng.random() < 0.06:
            requests["example.com/widget"] = limits["example.com/widget"] = rng.choice(("1", "2"))
        image = rng.choice(("img", *IMAGES))
        container: Body = {"name": name, "image": image, "resources": {"requests": requests, "limits": limits}}
        if rng.random() < 0.12 and name == "main":
            port: Body = {"containerPort": 80, "hostPort": rng.choice((80, 81)), "protocol": rng.choice(("TCP", "UDP"))}
            if rng.random() < 0.3:
                port["hostIP"] = rng.choice(("127.0.0.1", "10.0.0.1", "0.0.0.0"))
            container["ports"] = [port]
        return container

    def _toleration(self) -> Body:
        rng = self._rng
        toleration: Body = {"operator": rng.choice(("Exists", "Equal"))}
        if toleration["operator"] == "Equal" or rng.random() < 0.8:
            toleration["key"] = rng.choice(("dedicated", "gpu"))
        if toleration["operator"] == "Equal":
            toleration["value"] = rng.choice(("x", "y"))
        if rng.random() < 0.6:
            toleration["effect"] = rng.choice(("NoSchedule", "PreferNoSchedule", "NoExecute"))
        return toleration

    def _affinity(self) -> Body:
        rng = self._rng
        affinity: Body = {}
        if rng.random() < 0.4:
            affinity["nodeAffinity"] = self._node_affinity()
        for kind in ("podAffinity", "podAntiAffinity"):
            if rng.random() < 0.35:
                terms: Body = {}
                if rng.random() < 0.6:
                    terms["requiredDuringSchedulingIgnoredDuringExecution"] = [
                        self._term() for _ in range(rng.choice((1, 1, 2)))
                    ]
                if rng.random() < 0.6:
                    terms["preferredDuringSchedulingIgnoredDuringExecution"] = [
                        {"weight": rng.randint(1, 100), "podAffinityTerm": self._term()}
                        for _ in range(rng.choice((1, 1, 2)))
                    ]
                affinity[kind] = terms
        return affinity

    def _node_affinity(self) -> Body:
        rng = self._rng
        affinity: Body = {}
        if rng.random() < 0.6:
            terms = [{"matchExpressions": [self._node_expression()]} for _ in range(rng.choice((1, 2)))]
            if rng.random() < 0.15:
                terms.append({"matchFields": [self._field()]})
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if rng.random() < 0.6:
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": rng.randint(1, 100), "preference": {"matchExpressions": [self._node_expression()]}}
                for _ in range(rng.choice((1, 2)))
            ]
        return affinity

    def _field(self) -> Body:
        name = self._rng.choice((*self._nodes, "gone"))
        return {"key": "metadata.name", "operator": self._rng.choice(("In", "In", "NotIn")), "values": [name]}

    def _node_expression(self) -> Body:
        rng = self._rng
        match rng.randint(0, 4):
            case 0:
                return {"key": "rank", "operator": rng.choice(("Gt", "Lt")), "values": [str(rng.randint(0, 3))]}
            case 1:
                return {"key": ZONE, "operator": rng.choice(("Exists", "DoesNotExist"))}
            case 2:
                values = rng.sample(("z1", "z2", "z3"), rng.randint(1, 2))
                return {"key": ZONE, "operator": rng.choice(("In", "NotIn")), "values": values}
            case _:
                return {"key": "disk", "operator": rng.choice(("In", "NotIn")), "values": [rng.choice(("ssd", "hdd"))]}

    def _selector(self) -> Body:
        rng = self._rng
        match rng.randint(0, 5):
            case 0:
                return {}
            case 1:
                values = rng.sample(APPS, 2)
                return {"matchExpressions": [{"key": "app", "operator": rng.choice(("In", "NotIn")), "values": values}]}
            case 2:
                return {"matchExpressions": [{"key": "tier", "operator": rng.choice(("Exists", "DoesNotExist"))}]}
            case _:
                return {"matchLabels": {"app": rng.choice(APPS)}}

    def _term(self) -> Body:
        rng = self._rng
        term: Body = {"topologyKey": rng.choice((ZONE, HOST, HOST, "disk"))}
        if rng.random() < 0.95:
            term["labelSelector"] = self._selector()
        if rng.random() < 0.15:
            term["namespaces"] = [rng.choice(("blue", "green"))]
        if rng.random() < 0.15:
            colours = {"matchLabels": {"colour": "blue"}}
            term["namespaceSelector"] = rng.choice(({}, colours))
        if "labelSelector" in term and rng.random() < 0.1:
            term[rng.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
        return term

    def _spread(self) -> Body:
        rng = self._rng
        constraint: Body = {
            "maxSkew": rng.randint(1, 2),
            "topologyKey": rng.choice((ZONE, HOST, "disk")),
            "whenUnsatisfiable": rng.choice(("DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": self._selector(),
        }
        if constraint["whenUnsatisfiable"] == "DoNotSchedule":
            constraint["labelSelector"] = constraint["labelSelector"] or {"matchLabels": {"app": rng.choice(APPS)}}
            if rng.random() < 0.2:
                constraint["minDomains"] = rng.randint(1, 4)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if rng.random() < 0.25:
                constraint[policy] = rng.choice(("Honor", "Ignore"))
        if rng.random() < 0.15:
            constraint["matchLabelKeys"] = ["version"]
        return constraint

    def _volumes(self) -> list[Body]:
        rng = self._rng
        volumes: list[Body] = []
        if self.claims and rng.random() < 0.3:
            volumes.append({"name": "v0", "persistentVolumeClaim": {"claimName": rng.choice(self.claims)}})
        if rng.random() < 0.02:
            volumes.append({"name": "v1", "persistentVolumeClaim": {"claimName": "gone"}})
        if rng.random() < 0.05:
            volumes.append({"name": "v2", "gcePersistentDisk": {"pdName": "a", "readOnly": rng.random() < 0.5}})
        if rng.random() < 0.04:
            volumes.append({"name": "v3", "emptyDir": {}})
        return volumes
