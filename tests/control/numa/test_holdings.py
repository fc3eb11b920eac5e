"""What pods hold on a node, over random histories (spec 06 §2.3)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from control.numa.holdings import Holding, NodeHoldings
from control.numa.masks import mask_of, numbers_of
from tests.control.numa.layouts import layout

HOLDINGS = st.builds(
    Holding,
    st.sets(st.integers(0, 7)).map(mask_of),
    st.dictionaries(st.integers(0, 1), st.dictionaries(st.sampled_from(("cpu", "memory")), st.integers(0, 9))),
    st.sampled_from(("", "PCPULevel", "NUMANodeLevel")),
)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | HOLDINGS), max_size=12)


@given(STEPS)
def test_figures_are_those_of_the_present_pods(steps: list[tuple[str, Holding | None]]) -> None:
    holdings, pods, cores = NodeHoldings(), dict[str, Holding](), layout(1, 2, 2, 2)
    for uid, holding in steps:
        if holding is None:
            holdings.remove(uid)
            pods.pop(uid, None)
        else:
            holdings.add(uid, holding)
            pods[uid] = holding
    refs = Counter(cpu for pod in pods.values() for cpu in numbers_of(pod.cpus))
    assert holdings.counted == pods
    assert holdings.refs == refs
    undivided = {cpu for pod in pods.values() if not pod.zones for cpu in numbers_of(pod.cpus)}
    assert set(numbers_of(holdings.undivided)) == undivided
    assert set(numbers_of(holdings.full(1))) == set(refs)
    assert set(numbers_of(holdings.full(2))) == {cpu for cpu, count in refs.items() if count > 1}
    for zone in (0, 1):
        for name in ("cpu", "memory"):
            total = sum(pod.zones.get(zone, {}).get(name, 0) for pod in pods.values())
            assert holdings.zones.get(zone, {}).get(name, 0) == total
    spans = [{cpu // 4 for cpu in numbers_of(pod.cpus)} for pod in pods.values()]
    for zone, status in holdings.status(cores).items():
        here = [len(span) for span in spans if zone in span]
        assert status == ("idle" if not here else "single" if max(here) == 1 else "shared")
