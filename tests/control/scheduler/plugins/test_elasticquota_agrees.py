"""ElasticQuota agrees with its plain twin over whole cycles: any history of pods and quotas, and a restart after it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.elasticquota.book import QuotaBook
from control.scheduler.plugins.elasticquota.plugin import book_rules
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from tests.control.scheduler.build import pod
from tests.control.scheduler.plain.quotas import PlainQuota, PlainQuotaPod, PlainQuotas
from tests.control.scheduler.plugins.quotaworld import QuotaWorld, quota_object

TREE = {"top": names.ROOT_QUOTA, "a": "top", "b": "top", "c": names.ROOT_QUOTA}
CORES = 12

steps = st.one_of(
    st.tuples(st.just("submit"), st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 5), st.booleans())),
    st.tuples(st.just("place"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 9)),
    st.tuples(st.just("confirm"), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("quota"), st.tuples(st.sampled_from(sorted(TREE)), st.integers(0, 6), st.integers(0, 12))),
)


class History:
    """The plugin in whole cycles, and the lists that the plain twin reads."""

    def __init__(self) -> None:
        self.world = QuotaWorld(cpus=(str(CORES),))
        self.quotas: dict[str, PlainQuota] = {}
        self.pods: list[PodInfo] = []
        self.placements: dict[str, Any] = {}
        for name in TREE:
            self.set_quota(name, 2, 8)

    def set_quota(self, name: str, low: int, high: int) -> None:
        parent = TREE[name] if TREE[name] != names.ROOT_QUOTA else ""
        self.world.put(quota_object(name, parent, min=str(low), max=str(high)))
        amounts = {"cpu": low * 1000}, {"cpu": high * 1000}
        self.quotas[name] = PlainQuota(name, TREE[name], amounts[0], amounts[1], amounts[1])

    def plain(self) -> PlainQuotas:
        total = {"cpu": CORES * 1000}
        return PlainQuotas(total, self.quotas, [self.plain_pod(info) for info in self.pods])

    @staticmethod
    def plain_pod(info: PodInfo) -> PlainQuotaPod:
        labels = info.shape.labels
        fixed = labels.get(names.LABEL_QUOTA_PREEMPTIBLE) == "false"
        request = {"cpu": info.shape.requests.get("cpu", 0)}
        return PlainQuotaPod(info.uid, labels[names.LABEL_QUOTA_NAME], request, info.row >= 0, fixed)

    def step(self, step: str, what: Any) -> None:
        if step == "submit":
            quota, cpu, fixed = what
            labels = {names.LABEL_QUOTA_NAME: quota, **({names.LABEL_QUOTA_PREEMPTIBLE: "false"} if fixed else {})}
            self.pods.append(self.world.add(pod(cpu=str(cpu), memory=None, labels=labels)))
            return
        if step == "quota":
            self.set_quota(*what)
            return
        if what >= len(self.pods):
            return
        info = self.pods[what]
        placement = self.placements.get(info.uid)
        if step == "place" and info.row < 0:
            self.place(info)
        elif step == "fail" and placement is not None:
            self.world.cycle.release(self.placements.pop(info.uid))
        elif step == "confirm" and placement is not None:
            del self.placements[info.uid]
            spec = msgspec.structs.replace(info.pod.spec, node_name="n0")
            self.world.add(msgspec.structs.replace(info.pod, spec=spec))
        elif step == "delete":
            self.world.delete(info.pod)
            if placement is not None:
                self.world.cycle.release(self.placements.pop(info.uid))
            self.pods.remove(info)

    def place(self, info: PodInfo) -> None:
        refused = self.plain().refused(self.plain_pod(info))
        try:
            self.placements[info.uid] = self.world.cycle.place(info)
        except FitError as failure:
            by_quota = failure.pre_filter is not None and failure.pre_filter.plugin == "ElasticQuota"
            assert by_quota == bool(refused), failure.text()
        else:
            assert not refused

    def check(self) -> None:
        plain = self.plain()
        for name in TREE:
            assert self.cpu(name, "used") == plain.used(name, "cpu")
            assert self.cpu(name, "request") == plain.request(name, "cpu")

    def cpu(self, name: str, field: str) -> int:
        figures = self.world.plugin.book.forest.get(name)
        assert figures is not None
        amount: int = getattr(figures, field).get("cpu", 0)
        return amount


@given(st.lists(steps, max_size=40))
@settings(max_examples=60, deadline=None)
def test_histories_agree_and_a_restart_changes_nothing(history: list[tuple[str, Any]]) -> None:
    both = History()
    for step, what in history:
        both.step(step, what)
        both.check()
    world = both.world
    for uid in list(both.placements):
        world.cycle.release(both.placements.pop(uid))  # what is not bound is not remembered
    book = QuotaBook(world.cluster.handle, *book_rules(world.plugin.args, None))
    for stored in world.objects.informer(ElasticQuota).list():
        book.quota_seen(stored)
    for stored in world.objects.informer(Pod).list():
        book.pod_seen(stored)
    for name in TREE:
        old, new = world.plugin.book.forest.get(name), book.forest.get(name)
        assert old is not None
        assert new is not None
        for field in ("used", "request", "child_request", "np_used", "np_request"):
            before, after = getattr(old, field), getattr(new, field)
            assert {k: v for k, v in before.items() if v} == {k: v for k, v in after.items() if v}
        assert world.plugin.book.forest.tree(old).runtimes(old) == book.forest.tree(new).runtimes(new)
