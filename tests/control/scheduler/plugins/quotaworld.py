"""A cycle with ElasticQuota over a small cluster, fed like by informers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from control.quota.amounts import to_list
from control.scheduler.config.args import ElasticQuotaArgs
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption
from control.scheduler.plugins.elasticquota import ElasticQuotaPlugin
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.core.workloads import PodDisruptionBudget
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding import wire
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import Cluster, node
from tests.control.scheduler.toys import cycle_of

POINTS = {"preFilter": ("ElasticQuota",), "filter": ("NodeResourcesFit",), "postFilter": ("ElasticQuota",)}
REGISTRY = {plugin.name: plugin for plugin in (DefaultPreemption, ElasticQuotaPlugin, NodeResourcesFit)}


def quota_object(
    name: str, parent: str = "", *, min: str = "0", max: str = "100", lends: bool = True, **labels: str
) -> ElasticQuota:
    """Amounts are cpu."""
    body = {
        "metadata": {
            "name": name,
            "namespace": "quotas",
            "uid": f"quota-{name}",
            "resourceVersion": "1",
            "labels": {
                **({names.LABEL_QUOTA_PARENT: parent} if parent else {}),
                names.LABEL_QUOTA_ALLOW_LENT_RESOURCE: "true" if lends else "false",
                **labels,
            },
        },
        "spec": {"min": {"cpu": min}, "max": {"cpu": max}},
    }
    return wire.convert(body, ElasticQuota)


class HeldInformer:
    """An informer whose objects a test sets."""

    def __init__(self) -> None:
        self.handlers: list[tuple[Callable[..., Any], ...]] = []
        self.objects: dict[str, Any] = {}

    def add_handler(self, *handlers: Callable[..., Any], **named: Callable[..., Any]) -> None:
        """Handlers for added, updated and deleted objects, in this order or by name."""
        self.handlers.append(handlers or tuple(named[name] for name in ("on_add", "on_update", "on_delete")))

    def list(self) -> list[Any]:
        return [*self.objects.values()]

    def get(self, key: str) -> Any:
        return self.objects.get(key)

    def put(self, stored: Any) -> None:
        key = stored.metadata.key
        old = self.objects.get(key)
        self.objects[key] = stored
        for add, update, _ in self.handlers:
            if old is None:
                add(stored)
            else:
                update(old, stored)

    def remove(self, stored: Any) -> None:
        del self.objects[stored.metadata.key]
        for handlers in self.handlers:
            handlers[2](stored)


class HeldObjects:
    """`Objects` of a handle."""

    def __init__(self) -> None:
        self.informers: dict[type[Any], HeldInformer] = {}

    def informer(self, kind: type[Any]) -> Any:
        return self.informers.setdefault(kind, HeldInformer())


class QuotaWorld:
    """One node per entry of `cpus`."""

    def __init__(
        self,
        *quotas: ElasticQuota,
        cpus: Sequence[str] = ("100",),
        gates: FeatureGates | None = None,
        **services: Any,
    ) -> None:
        args = services.pop("args", ElasticQuotaArgs())
        points = services.pop("points", POINTS)
        self.cluster = Cluster(*(node(f"n{at}", cpu=cpu, memory="1Ti") for at, cpu in enumerate(cpus)))
        self.objects = HeldObjects()
        self.cluster.use(objects=self.objects, gates=gates, **services)
        self.cycle: Cycle = cycle_of(self.cluster, points, REGISTRY, args={"ElasticQuota": args})
        plugin = self.cycle.framework.plugins["ElasticQuota"]
        assert isinstance(plugin, ElasticQuotaPlugin)
        self.plugin = plugin
        self.objects.informer(PodDisruptionBudget)
        for quota in quotas:
            self.put(quota)

    def put(self, quota: ElasticQuota) -> None:
        self.objects.informer(ElasticQuota).put(quota)

    def add(self, pod: Pod) -> PodInfo:
        """A pod as the API server has it; counted if it has a node."""
        if pod.spec.node_name:
            info = self.cycle.cache.set_pod(pod)
            assert info is not None
        else:
            info = self.cluster.info(pod)
        self.objects.informer(Pod).put(pod)
        return info

    def delete(self, pod: Pod) -> None:
        self.cycle.cache.remove_pod(pod.metadata.uid)
        self.objects.informer(Pod).remove(pod)

    def figure(self, name: str, field: str) -> dict[str, str]:
        figures = self.plugin.book.forest.get(name)
        assert figures is not None
        return {key: str(amount) for key, amount in to_list(getattr(figures, field)).items() if amount}

    def runtime(self, name: str) -> str:
        page = self.plugin.quota_page(name)
        return str(page["runtime"]["cpu"])
