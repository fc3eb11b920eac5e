"""CPUs in a pod's annotation are accepted only for pinned classes, on this node, within its request, and once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.api.core import Container, Pod
from koordlet.api.core.pod import PodSpec, PodStatus, ResourceRequirements
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ObjectMeta
from koordlet.statesinformer.pods.cpuallocation import CPUAllocation, accept, allocation_of
from koordlet.system.cpu.cpuset import CPUSet

ONLINE = CPUSet(range(8))


def pod(
    name: str = "a", status: str = '{"cpuset":"0-1"}', *, qos: str = "LSR", priority: int | None = None,
    cpu: int = 8, created: int = 0, terminating: bool = False, phase: str = "Running",
    labels: dict[str, str] | None = None,
) -> Pod:  # fmt: skip
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=name,
            labels={**({names.LABEL_QOS_CLASS: qos} if qos else {}), **(labels or {})},
            annotations={names.ANNOTATION_RESOURCE_STATUS: status},
            creation_timestamp=Time.from_unix(created),
            deletion_timestamp=Time.from_unix(created) if terminating else None,
        ),
        spec=PodSpec(
            containers=[Container(name="c", resources=ResourceRequirements(requests={"cpu": Quantity.of(cpu)}))],
            priority=priority,
        ),
        status=PodStatus(phase=phase),
    )


def accepted(
    *pods: Pod, held: dict[str, CPUSet] | None = None, online: CPUSet | None = ONLINE
) -> dict[str, CPUAllocation]:
    return accept({p.metadata.uid: (p, allocation_of(p)) for p in pods}, held or {}, online)


CLASSES = {
    "LSR": (pod(), True),
    "LSE": (pod(qos="LSE"), True),
    "LSR of prod priority": (pod(priority=9500), True),
    "LSR of batch priority": (pod(priority=5500), False),
    "LSR labelled as batch": (pod(labels={names.LABEL_PRIORITY_CLASS: "koord-batch"}), False),
    "LS": (pod(qos="LS"), False),
    "BE": (pod(qos="BE"), False),
    "SYSTEM": (pod(qos="SYSTEM"), False),
    "unlabelled": (pod(qos=""), False),
    "finished": (pod(phase="Succeeded"), False),
}


@pytest.mark.parametrize(("of", "expected"), CLASSES.values(), ids=CLASSES)
def test_which_pods_are_pinned(of: Pod, expected: bool) -> None:
    assert bool(allocation_of(of).cpus) is expected


def test_a_refused_pod_keeps_its_numa_nodes() -> None:
    status = '{"cpuset":"0-7","numaNodeResources":[{"node":1,"resources":{"cpu":"1"}}]}'
    allocation = allocation_of(pod(status=status, qos="LS"))
    assert (allocation.cpus, allocation.numa_nodes) == (CPUSet(), (1,))
    assert "not for LS pods" in allocation.refused


REFUSED = {
    "CPUs of another machine": (pod(status='{"cpuset":"7-8"}'), "this node has no CPUs 8"),
    "more than it requests": (pod(cpu=1), "2 CPUs are more than the request of 1"),
}


@pytest.mark.parametrize(("of", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_a_node_refuses(of: Pod, reason: str) -> None:
    allocation = accepted(of)["a"]
    assert allocation.cpus == CPUSet() and reason in allocation.refused


def test_a_malformed_annotation_names_pod_and_key() -> None:
    assert f"pod ns/a: {names.ANNOTATION_RESOURCE_STATUS}" in allocation_of(pod(status="{")).error


def test_of_two_pods_with_the_same_cpus_the_older_has_them() -> None:
    result = accepted(pod("young", created=2), pod("old", created=1))
    assert result["old"].cpus == CPUSet({0, 1})
    assert result["young"].cpus == CPUSet() and "pod ns/old has the CPUs 0-1" in result["young"].refused


def test_a_pod_keeps_what_it_was_accepted_with_when_an_older_pod_is_changed() -> None:
    held = {"young": CPUSet({0, 1})}
    result = accepted(pod("young", created=2), pod("old", created=1), held=held)
    assert result["young"].cpus == CPUSet({0, 1}) and result["old"].cpus == CPUSet()


def test_a_terminating_pod_gives_way_to_its_successor() -> None:
    held = {"leaves": CPUSet({0, 1})}
    result = accepted(pod("leaves", created=1, terminating=True), pod("comes", created=2), held=held)
    assert result["comes"].cpus == CPUSet({0, 1})


pods = st.lists(
    st.builds(
        pod,
        st.sampled_from("abcdef"),
        st.sets(st.integers(0, 9)).map(lambda cpus: f'{{"cpuset":"{CPUSet(cpus)}"}}'),
        qos=st.sampled_from(["LSE", "LSR", "LS", ""]),
        cpu=st.integers(0, 8),
        created=st.integers(0, 3),
        terminating=st.booleans(),
    ),
    unique_by=lambda pods: pods.metadata.uid,
)


@given(pods, st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(0, 7)).map(CPUSet)))
def test_accepted_cpus_exist_and_do_not_overlap(candidates: list[Pod], held: dict[str, CPUSet]) -> None:
    result = accepted(*candidates, held=held)
    assert result.keys() == {each.metadata.uid for each in candidates}
    taken = [cpu for allocation in result.values() for cpu in allocation.cpus]
    assert len(taken) == len(set(taken)) and set(taken) <= ONLINE
    again = accepted(*candidates, held={uid: allocation.cpus for uid, allocation in result.items()})
    assert again == result, "the next answer of the kubelet changes nothing"
