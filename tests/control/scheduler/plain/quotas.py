"""ElasticQuota, slow and plain: everything is computed from the lists of quotas and pods (spec 06 §5.2 to §5.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

ROOT, DEFAULT, SYSTEM = "koordinator-root-quota", "koordinator-default-quota", "koordinator-system-quota"


@dataclass(frozen=True)
class PlainQuota:
    name: str
    parent: str = ROOT
    min: Mapping[str, int] = field(default_factory=dict)
    max: Mapping[str, int] = field(default_factory=dict)
    weight: Mapping[str, int] = field(default_factory=dict)
    lends: bool = True


@dataclass(frozen=True)
class PlainQuotaPod:
    name: str
    quota: str
    request: Mapping[str, int]
    assigned: bool = False
    non_preemptible: bool = False


@dataclass(frozen=True)
class PlainQuotas:
    """One tree. Quotas whose parents do not lead to the root have a runtime of 0."""

    total: Mapping[str, int]
    quotas: Mapping[str, PlainQuota]
    pods: Sequence[PlainQuotaPod]
    scale_min: bool = True

    def of(self, pod: PlainQuotaPod) -> str:
        return pod.quota if pod.quota in self.quotas else DEFAULT

    def children(self, name: str) -> list[PlainQuota]:
        return [quota for quota in self.quotas.values() if quota.parent == name and quota.name not in (DEFAULT, SYSTEM)]

    def attached(self, name: str) -> bool:
        seen = set()
        while name != ROOT:
            if name in seen or name not in self.quotas:
                return False
            seen.add(name)
            name = self.quotas[name].parent
        return True

    def own(self, name: str, resource: str, *, assigned: bool) -> int:
        quota = self.quotas.get(name)
        if quota is None or resource not in quota.max:
            return 0
        counted = [pod for pod in self.pods if self.of(pod) == name and (pod.assigned or not assigned)]
        return sum(pod.request.get(resource, 0) for pod in counted)

    def used(self, name: str, resource: str) -> int:
        own = self.own(name, resource, assigned=True)
        if not self.attached(name):
            return own
        below = [quota for quota in self.quotas.values() if quota.parent == name and self.attached(quota.name)]
        return own + sum(self.used(quota.name, resource) for quota in below)

    def minimum(self, name: str, resource: str) -> int:
        quota = self.quotas[name]
        return min(quota.min.get(resource, 0), quota.max[resource]) if resource in quota.max else 0

    def request(self, name: str, resource: str) -> int:
        own = self.own(name, resource, assigned=False)
        if self.attached(name):
            own += sum(self.limited(child.name, resource) for child in self.children(name))
        return own if self.quotas[name].lends else max(own, self.minimum(name, resource))

    def limited(self, name: str, resource: str) -> int:
        request, limit = self.request(name, resource), self.quotas[name].max
        return min(request, limit[resource]) if resource in limit else request

    def runtime(self, name: str, resource: str) -> int:
        if name == ROOT:
            taken = sum(self.used(name, resource) for name in (DEFAULT, SYSTEM) if name in self.quotas)
            return max(self.total.get(resource, 0) - taken, 0)
        if name in (DEFAULT, SYSTEM):
            return self.quotas[name].max.get(resource, 0)
        if not self.attached(name):
            return 0
        parent = self.quotas[name].parent
        total = max(self.runtime(parent, resource) - self.own(parent, resource, assigned=True), 0)
        return self.level(self.children(parent), resource, total)[name]

    def level(self, quotas: Sequence[PlainQuota], resource: str, total: int) -> dict[str, int]:
        minima = {quota.name: self.minimum(quota.name, resource) for quota in quotas}
        everything = sum(minima.values())
        if self.scale_min and everything > total:
            minima = {name: total * minimum // everything for name, minimum in minima.items()}
        requested = {quota.name: self.limited(quota.name, resource) for quota in quotas}
        shares = {}
        hungry = []
        for member in sorted(quotas, key=lambda quota: quota.name):
            name, weight = member.name, member.weight.get(resource, 0)
            if requested[name] > minima[name]:
                shares[name] = minima[name]
                hungry.append((name, weight))
            else:
                shares[name] = requested[name] if member.lends else minima[name]
        left = total - sum(shares.values())
        while left > 0 and sum(weight for _, weight in hungry) > 0:
            weights = sum(weight for _, weight in hungry)
            exact = {name: Fraction(weight * left, weights) for name, weight in hungry}
            parts = {name: int(part) for name, part in exact.items()}
            rest = left - sum(parts.values())
            for name in sorted(exact, key=lambda name: (parts[name] - exact[name], name))[:rest]:
                parts[name] += 1
            left = 0
            for name, part in parts.items():
                shares[name] += part
                left += max(shares[name] - requested[name], 0)
                shares[name] = min(shares[name], requested[name])
            hungry = [(name, weight) for name, weight in hungry if shares[name] < requested[name]]
        return shares

    def refused(self, pod: PlainQuotaPod, *, by_runtime: bool = True) -> set[str]:
        """The resources for which the pod, which is not assigned, is refused; "min" stands for non-preemptible ones."""
        name = self.of(pod)
        quota = self.quotas.get(name)
        if quota is None:
            return set()
        over = set()
        for resource, limit in quota.max.items():
            if self.used(name, resource) + pod.request.get(resource, 0) > (
                self.runtime(name, resource) if by_runtime else limit
            ):
                over.add(resource)
        if not over and pod.non_preemptible:
            for resource in quota.max:
                held = sum(
                    pod.request.get(resource, 0)
                    for pod in self.pods
                    if pod.assigned and pod.non_preemptible and self.of(pod) == name
                )
                minimum = quota.min
                if resource in minimum and held + pod.request.get(resource, 0) > self.minimum(name, resource):
                    over.add("min")
        return over
