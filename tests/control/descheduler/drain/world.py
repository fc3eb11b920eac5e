"""The migration controller's small cluster with nodes, drains, and a scheduler that respects node affinity."""

from __future__ import annotations

from typing import Any

from control.descheduler.drain.controller import DrainController
from control.descheduler.framework.handle import PluginHandle
from koordlet.api.core import Node
from koordlet.api.crs.drain import DrainNode, PodMigration
from koordlet.api.encoding import wire
from tests.control.descheduler.migration.world import DRAINS, JOBS, NODES, PODS, RESERVATIONS, Faults, World, no_faults

Json = dict[str, Any]
PLANNING = "drain.descheduler.koordinator.sh/node-planning"


class DrainWorld(World):
    """See the module text."""

    def __init__(self, args: Any, faults: Faults = no_faults, *, budget: int = 1, nodes: int = 3) -> None:
        self.schedulable = True
        """whether koord-scheduler runs and there is room"""
        super().__init__(args, faults, budget=budget)
        for number in range(1, nodes + 1):
            self.store.put(NODES, {"metadata": {"name": f"n{number}", "labels": {"zone": "a"}}, "spec": {}})
        self.default_node = f"n{nodes}"
        self.deliver()

    def extend(self, handle: PluginHandle) -> None:
        self.drains = DrainController(handle, self.migration)
        self.objects.informer(Node).add_handler(
            self.state.set_node,
            lambda old, new: self.state.set_node(new),
            lambda node: self.state.remove_node(node.metadata.name),
        )

    def drain(self, node: str = "n1", name: str = "", **more: Any) -> None:
        """Create a DrainNode that cordons by taint and moves pods at once; `confirm`, `policy`, `annotations`."""
        policy = more.pop("policy", {"mode": "MigrateDirectly"})
        spec = {"nodeName": node, "cordonPolicy": {"mode": "Taint"}, "migrationPolicy": policy}
        spec |= {"confirmState": more.pop("confirm", "WaitForConfirm")}
        meta = {"name": name or f"drain-{node}", "annotations": more.pop("annotations", {})}
        self.store.put(DRAINS, {"metadata": meta, "spec": {**spec, **more}, "status": {}})

    def confirm(self, name: str = "drain-n1", state: str = "Confirmed") -> None:
        document = self.store.objects[DRAINS][name]
        document["spec"]["confirmState"] = state
        self.store.put(DRAINS, document)

    def schedule(self) -> None:
        """koord-scheduler places Reservations on nodes that their affinity allows."""
        for each in list(self.store.objects[RESERVATIONS].values()):
            if each["status"].get("phase", "Pending") == "Pending":
                node = next(iter(self._allowed(each)), "") if self.schedulable else ""
                condition = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                each["status"] = {"phase": "Pending", "conditions": [condition]}
                if node:
                    condition = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
                    each["status"] = {"phase": "Available", "nodeName": node, "conditions": [condition]}
                self.store.put(RESERVATIONS, each)

    def _allowed(self, reservation: Json) -> list[str]:
        spec = reservation["spec"]["template"]["spec"]
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = affinity["nodeSelectorTerms"]
        refused = {name for field in term["matchFields"] for name in field["values"]}
        absent = {
            expression["key"]
            for expression in term.get("matchExpressions", [])
            if expression["operator"] == "DoesNotExist"
        }
        return [
            name
            for name, node in self.store.objects[NODES].items()
            if name not in refused and not absent & node["metadata"]["labels"].keys()
        ]

    async def once(self) -> None:
        """The controller's next look, with what the server has now."""
        self.deliver()
        await self.drains.round()
        await self.migration.arbitrate()
        await self.run_jobs()
        await self.migration.scavenge()

    async def settle(self, rounds: int = 12, seconds: float = 3.0) -> None:
        """A cluster in which everything else works."""
        for _ in range(rounds):
            await self.once()
            self.schedule()
            self.finish_terminations()
            self.collect_garbage()
            await self.clock.advance(seconds)
            self.check_limits()
        await self.once()

    def collect_garbage(self) -> None:
        """Delete what a deleted DrainNode owned."""
        drains = {each["metadata"]["uid"] for each in self.store.objects[DRAINS].values()}
        for plural in (JOBS, RESERVATIONS):
            for key, each in list(self.store.objects[plural].items()):
                owners = [
                    owner for owner in each["metadata"].get("ownerReferences", []) if owner["kind"] == "DrainNode"
                ]
                if any(owner["uid"] not in drains for owner in owners):
                    del self.store.objects[plural][key]

    # Results

    def status(self, name: str = "drain-n1") -> DrainNode:
        return wire.convert(self.store.objects[DRAINS][name], DrainNode)

    def entries(self, name: str = "drain-n1") -> dict[str, PodMigration]:
        return {entry.pod_name: entry for entry in self.status(name).status.pod_migrations}

    def phases(self, name: str = "drain-n1") -> list[str]:
        return sorted(entry.phase for entry in self.entries(name).values())

    def node(self, name: str = "n1") -> Json:
        return self.store.objects[NODES][name]

    def on(self, node: str) -> list[str]:
        """The pods of a node, by name."""
        pods = self.store.objects[PODS].values()
        return sorted(pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == node)

    def own_reservations(self) -> list[str]:
        """Unconsumed Reservations of drains."""
        return sorted(
            name
            for name, each in self.store.objects[RESERVATIONS].items()
            if any(owner["kind"] == "DrainNode" for owner in each["metadata"].get("ownerReferences", []))
            and not each["status"].get("currentOwners")
        )

    def is_cordoned(self, name: str = "n1") -> bool:
        node = self.node(name)
        return bool(node["spec"].get("taints")) or PLANNING in node["metadata"]["labels"]

    def special_pod(self, name: str, on: str = "n1", **changes: Any) -> Json:
        """A pod of a ReplicaSet of its own, with other metadata or spec; the other pods are on n2."""
        self.workload(f"set-of-{name}", 4, ["n2"])
        first = sorted(self.store.objects[PODS], key=lambda key: int(key.rpartition("-")[2]) if "set-of" in key else 0)
        del self.store.objects[PODS][first[-1]]
        pod = self.pod(f"set-of-{name}", on)
        key = f"default/{pod['metadata']['name']}"
        del self.store.objects[PODS][key]
        pod["metadata"] |= {"name": name, **changes.get("metadata", {})}
        pod["spec"] |= changes.get("spec", {})
        return self.store.put(PODS, pod)
