"""PodDisruptionBudgets: keeps their status, and checks evictions against them.

The controller keeps each budget's status (expectedPods, currentHealthy, desiredHealthy, disruptionsAllowed).
`eviction_gate` uses one allowed disruption of a pod's budget before the pod is evicted, or rejects the eviction with
429. Evicted pods count as not healthy by name (disruptedPods) until they are deleted, for at most DISRUPTED_SECONDS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from control.standalone import errors
from control.standalone.controllers import conditions, ownership
from control.standalone.controllers.base import EmbeddedController, Key, Mapper, ignore_missing, itself
from control.standalone.objectmeta import parse_timestamp, timestamp
from control.standalone.policyinterfaces import SYSTEM
from control.standalone.registry import ObjectChange, ObjectRegistry, WriteOptions
from control.standalone.selectors import label_selector

Json = dict[str, Any]

PDB = "policy/poddisruptionbudgets"
DISRUPTED_SECONDS = 120.0
_STATUS = WriteOptions(subresource="status", field_manager="kube-controller-manager")
VIOLATION = "Cannot evict pod as it would violate the pod's disruption budget."


class UnknownScale(Exception):
    """The desired number of pods can't be determined from their controllers."""


@dataclass(frozen=True, slots=True)
class Counts:
    expected: int
    desired: int
    healthy: int

    @property
    def allowed(self) -> int:
        return max(0, self.healthy - self.desired) if self.expected > 0 else 0


class DisruptionController(EmbeddedController):
    name = "disruption"

    def watches(self) -> dict[str, Mapper]:
        return {PDB: itself, "/pods": self._budgets_of}

    def _budgets_of(self, change: ObjectChange) -> list[Key]:
        metadata = change.object["metadata"]
        namespace = metadata["namespace"]
        budgets = self.registry.store.list(PDB, namespace)
        return [(namespace, each["metadata"]["name"]) for each in budgets if covers(each, change.object)]

    async def reconcile(self, key: Key) -> float | None:
        budget = self.registry.find(PDB, *key)
        if budget is None:
            return None
        pods = [pod for pod in self.registry.store.list("/pods", key[0]) if covers(budget, pod)]
        disrupted, again = self._disrupted(budget, pods)
        now = timestamp(self.now)
        old = budget.get("status") or {}
        try:
            counts = self._count(budget, pods, disrupted)
        except UnknownScale as error:
            allowed = 0
            row = ("False", "SyncFailed", str(error))
            status = {**old, "disruptionsAllowed": 0}
        else:
            allowed = counts.allowed
            row = ("True", "SufficientPods", "") if allowed > 0 else ("False", "InsufficientPods", "")
            status = {
                **old,
                "expectedPods": counts.expected,
                "desiredHealthy": counts.desired,
                "currentHealthy": counts.healthy,
                "disruptionsAllowed": allowed,
                "disruptedPods": disrupted,
            }
        generation = budget["metadata"].get("generation", 1)
        status["observedGeneration"] = generation
        status["conditions"] = conditions.put(
            old.get("conditions"), "DisruptionAllowed", *row, now, observedGeneration=generation
        )
        if not disrupted:
            status.pop("disruptedPods", None)
        budget["status"] = status  # with its resourceVersion, so that a concurrent eviction makes this a conflict
        await ignore_missing(self.registry.update(PDB, *key, budget, SYSTEM, _STATUS))
        return again

    def _disrupted(self, budget: Json, pods: list[Json]) -> tuple[dict[str, str], float | None]:
        """Evicted pods that still exist, and the seconds until the first of them stops counting."""
        present = {pod["metadata"]["name"]: pod for pod in pods if not pod["metadata"].get("deletionTimestamp")}
        disrupted: dict[str, str] = {}
        again: float | None = None
        for name, since in ((budget.get("status") or {}).get("disruptedPods") or {}).items():
            left = parse_timestamp(since) + DISRUPTED_SECONDS - self.now
            if name in present and left > 0:
                disrupted[name] = since
                again = left if again is None else min(again, left)
        return disrupted, again

    def _count(self, budget: Json, pods: list[Json], disrupted: dict[str, str]) -> Counts:
        spec = budget.get("spec") or {}
        low, high = spec.get("minAvailable"), spec.get("maxUnavailable")
        alive = [pod for pod in pods if not ownership.finished(pod)]
        healthy = sum(
            ownership.ready(pod)
            and not pod["metadata"].get("deletionTimestamp")
            and pod["metadata"]["name"] not in disrupted
            for pod in alive
        )
        if high is None and isinstance(low, int):
            return Counts(len(alive), low, healthy)
        expected = sum(self._scales(alive).values())
        if high is not None:
            return Counts(expected, max(0, expected - ownership.amount(high, expected, True)), healthy)
        return Counts(expected, ownership.amount(low if low is not None else 0, expected, True), healthy)

    def _scales(self, pods: list[Json]) -> dict[str, int]:
        """uid of each controller of the pods -> its desired number of pods."""
        scales: dict[str, int] = {}
        for pod in pods:
            reference = ownership.controller_of(pod)
            if reference is None:
                name = pod["metadata"]["name"]
                raise UnknownScale(f'found no controllers for pod "{name}"')
            owner = self._live(pod, reference)
            deployment = ownership.controller_of(owner) if owner["kind"] == "ReplicaSet" else None
            if deployment is not None and deployment.get("kind") == "Deployment":
                owner = self._live(owner, deployment)
            scales[owner["metadata"]["uid"]] = self._replicas(owner)
        return scales

    def _live(self, obj: Json, reference: Json) -> Json:
        kind = self.registry.kinds.by_gvk(reference["apiVersion"], reference["kind"])
        owner = self.registry.find(kind.key, obj["metadata"]["namespace"], reference["name"]) if kind else None
        if owner is None or owner["metadata"]["uid"] != reference["uid"]:
            raise UnknownScale(f'{reference["kind"]} "{reference["name"]}" not found')
        return owner

    def _replicas(self, owner: Json) -> int:
        kind = self.registry.kinds.by_gvk(owner["apiVersion"], owner["kind"])
        if kind is None or kind.scale is None:
            raise UnknownScale(f"{owner['kind']} does not implement the scale subresource")
        value: Any = owner
        for part in kind.scale.spec_replicas.strip(".").split("."):
            value = (value or {}).get(part)
        return value if isinstance(value, int) else 1


def covers(budget: Json, pod: Json) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    return label_selector(selector)(pod["metadata"].get("labels") or {})


async def eviction_gate(registry: ObjectRegistry, pod: Json, dry_run: bool) -> None:
    """Use one disruption of the pod's budget; raises StatusError 429 if none is allowed, 500 for several budgets."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    budgets = [each for each in registry.store.list(PDB, namespace) if covers(each, pod)]
    if not budgets:
        return
    if len(budgets) > 1:
        raise errors.internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    budget = budgets[0]
    status = budget.get("status") or {}
    if not ownership.ready(pod):
        always = (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        enough = status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0
        if always or enough:
            return

    def take(live: Json) -> Json | None:
        status = live.setdefault("status", {})
        budget_name = live["metadata"]["name"]
        if status.get("observedGeneration", 0) < live["metadata"].get("generation", 1):
            cause = f"The disruption budget {budget_name} is still being processed by the server."
            raise _rejected(cause, 10)
        if status.get("disruptionsAllowed", 0) <= 0:
            desired, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
            cause = f"The disruption budget {budget_name} needs {desired} healthy pods and has {healthy} currently"
            raise _rejected(cause, 0)
        status["disruptionsAllowed"] -= 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), name: timestamp(registry.now())}
        if status["disruptionsAllowed"] == 0:
            status["conditions"] = conditions.put(
                status.get("conditions"),
                "DisruptionAllowed",
                "False",
                "InsufficientPods",
                "",
                timestamp(registry.now()),
            )
        return None if dry_run else live

    options = WriteOptions(subresource="status", field_manager="kube-apiserver", dry_run=dry_run)
    await ignore_missing(registry.modify(PDB, namespace, budget["metadata"]["name"], take, SYSTEM, options))


def _rejected(cause: str, retry: int) -> errors.StatusError:
    causes = [{"reason": "DisruptionBudget", "message": cause}]
    return errors.too_many_requests(VIOLATION, retry or None, causes)
