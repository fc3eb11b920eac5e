"""PreEnqueue and Permit of gangs agree with a simple implementation, over random histories of members."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import Code
from control.scheduler.plugins.coscheduling import Coscheduling
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain.gangs import PlainGang, PlainGangs

P = "gang.scheduling.koordinator.sh/"
POLICIES = ("only-waiting", "waiting-and-running", "once-satisfied")
IDS = {"a": ("default/a",), "b": ("default/b", "default/c"), "c": ("default/b", "default/c")}


class Parked:
    """Pods at Permit; those that are let go are being bound."""

    def __init__(self) -> None:
        self.parked: dict[str, PodInfo] = {}

    def waiting_pods(self) -> Iterable[PodInfo]:
        return list(self.parked.values())

    def waiting(self, uid: str) -> PodInfo | None:
        return self.parked.get(uid)

    def allow(self, uid: str, plugin: str) -> None:
        del self.parked[uid]

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        raise AssertionError("these gangs are not strict")


GANGS = st.fixed_dictionaries({name: st.tuples(st.integers(1, 3), st.sampled_from(POLICIES)) for name in IDS})
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "placed", "enqueue", "permit", "permit", "return", "bind", "delete")),
        st.sampled_from(sorted(IDS)),
        st.integers(0, 9),
    ),
    min_size=5,
    max_size=25,
)


@given(GANGS, STEPS)
def test_decisions_are_those_of_counting(rules: dict[str, tuple[int, str]], steps: list[tuple[str, str, int]]) -> None:
    cluster, parked = Cluster(node("n")), Parked()
    cluster.use(waiting=parked)
    plugin = Coscheduling(CoschedulingArgs(), cluster.handle)
    plain = PlainGangs({f"default/{name}": PlainGang(*rules[name], IDS[name]) for name in IDS})
    pods: dict[str, Pod] = {}
    for number, (what, gang, chosen) in enumerate(steps):
        if what in ("add", "placed"):
            minimum, policy = rules[gang]
            notes = {"name": gang, "min-available": str(minimum), "match-policy": policy, "mode": "NonStrict"}
            notes["groups"] = msgspec.json.encode(IDS[gang]).decode()
            created = pod(f"p{number}", annotations={P + key: value for key, value in notes.items()})
            if what == "placed":
                created = msgspec.structs.replace(created, spec=msgspec.structs.replace(created.spec, node_name="n"))
            key = created.metadata.key
            pods[key] = created
            plugin.events.pod_added(created)
            plain.members[key] = (f"default/{gang}", "pending")
            if what == "placed":
                plain.bound(key, f"default/{gang}")
            continue
        if not pods:
            continue
        key = sorted(pods)[chosen % len(pods)]
        of, state = plain.members[key]
        info = cluster.info(pods[key])
        if what == "enqueue":
            assert plugin.pre_enqueue(info).message == plain.enqueued(key)
        elif what == "permit" and state == "pending":
            status = plugin.permit(CycleState(), info, 0)
            assert status.ok == plain.permitted(key)
            if status.code is Code.WAIT:
                parked.parked[info.uid] = info
            else:
                assert parked.parked == {
                    uid: pod for uid, pod in parked.parked.items() if plain.members[pod.key][0] not in IDS[of[-1]]
                }
        elif what == "return" and state == "waiting":
            parked.parked.pop(info.uid, None)
            plugin.unreserve(CycleState(), info, 0)
            plain.returned(key)
        elif what == "bind" and state == "waiting" and info.uid not in parked.parked:
            asyncio.run(plugin.post_bind(CycleState(), info, 0))
            plain.bound(key, of)
        elif what == "delete":
            parked.parked.pop(info.uid, None)
            plugin.events.pod_deleted(pods.pop(key))
            plain.deleted(key)
