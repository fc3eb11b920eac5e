"""Network bandwidth by class and pod: the table of spec 03 §4.12."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.rules.bandwidth import size
from koordlet.runtimehooks.hooks.netqos import FIRST_POD_MINOR, MIN_RATE_BPS, NetQoS
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

GBIT = 1_000_000_000
NO_SETS = "no sets here"


def slo(
    ls: dict[str, int] | None = None, be: dict[str, Any] | None = None, total: str = "1G", policy: str | None = None
) -> dict[str, Any]:
    qos = {
        f"{name}Class": {"networkQOS": {"enable": True, **class_qos}}
        for name, class_qos in (("ls", ls), ("be", be))
        if class_qos
    }
    if policy:
        qos["policies"] = {"netQOSPolicy": policy}  # type: ignore[dict-item]
    return {"resourceQOSStrategy": qos, "systemStrategy": {"totalNetworkBandwidth": total}}


def net_pod(
    name: str, qos: str = "", ip: str = "", limit: str | None = None, host: bool = False, **fields: Any
) -> PodView:
    annotations = {} if limit is None else {"koordinator.sh/networkQOS": json.dumps({"egressLimit": limit})}
    pod = make_pod(name, qos=qos, annotations=annotations, spec={"hostNetwork": host}, **fields)
    assert pod.meta.pod is not None
    pod.meta.pod.status.pod_ip = ip
    return pod


def strategy(classids: bool = False, sets: str = "", interface: str | None = "eth0") -> NetQoS:
    return NetQoS(lambda: interface, lambda resource, directory: classids, sets)


def values(decision: QoSDecision) -> dict[tuple[str, str], Any]:
    return {(u.setting.resource, u.setting.cgroup_dir or u.setting.device): u.value for u in decision.updates}


def decide(policy: dict[str, Any], *pods: PodView, **options: Any) -> QoSDecision | None:
    return strategy(**options).decide(make_view(slo=policy, pods=pods))


def test_the_tree_of_classes() -> None:
    settings = values(
        present(
            decide(slo(ls={"egressRequest": 40, "egressLimit": 90}, be={"egressRequest": "100M", "egressLimit": 50}))
        )
    )
    assert {key: value for key, value in settings.items() if key[0].startswith("tc.")} == {
        ("tc.qdisc", "eth0"): "htb 1: default 2",
        ("tc.total", "eth0"): f"prio 0 rate {GBIT} ceil {GBIT}",
        ("tc.class", "eth0 1:2"): f"prio 1 rate {500_000_000} ceil {GBIT}",
        ("tc.class", "eth0 1:3"): f"prio 2 rate {400_000_000} ceil {900_000_000}",
        ("tc.class", "eth0 1:4"): f"prio 3 rate {100_000_000} ceil {500_000_000}",
    }


@pytest.mark.parametrize(
    ("class_qos", "expected"),
    [
        pytest.param({"egressRequest": 30}, (300_000_000, 300_000_000), id="no limit: the request"),
        pytest.param({"egressLimit": 30}, (MIN_RATE_BPS, 300_000_000), id="no request: the least rate there is"),
        pytest.param({"egressRequest": 0, "egressLimit": 0}, (MIN_RATE_BPS, GBIT), id="neither"),
        pytest.param(
            {"egressRequest": 101, "egressLimit": -1}, (MIN_RATE_BPS, GBIT), id="percentages out of range count as 0"
        ),
    ],
)
def test_requests_and_limits(class_qos: dict[str, int], expected: tuple[int, int]) -> None:
    settings = values(present(decide(slo(be=class_qos))))
    assert settings["tc.class", "eth0 1:4"] == "prio 3 rate {} ceil {}".format(*expected)


@pytest.mark.parametrize(
    ("held", "best_effort", "own"),
    [
        ({}, (100_000_000, 500_000_000), 80_000_000),
        ({"uid-other": 40}, (100_000_000, 200_000_000), 80_000_000),
        ({"uid-other": 10, "uid-third": 30}, (50_000_000, 50_000_000), 80_000_000),
        ({"uid-own": 50}, (100_000_000, 500_000_000), 40_000_000),
    ],
    ids=["no-culprit", "best-effort-has-less", "minimum-of-all-and-never-more-guaranteed", "its-own-class"],
)
def test_a_culprit_has_less_bandwidth(held: dict[str, int], best_effort: tuple[int, int], own: int) -> None:
    pods = [net_pod("own", "BE", "10.0.0.1", "80M"), net_pod("other", "BE", "10.0.0.2")]
    strategy = NetQoS(lambda: "eth0", lambda resource, directory: False, held=lambda: held)
    policy = slo(be={"egressRequest": "100M", "egressLimit": 50})
    settings = values(present(strategy.decide(make_view(slo=policy, pods=pods))))
    assert settings["tc.class", "eth0 1:4"] == "prio 3 rate {} ceil {}".format(*best_effort)
    (line,) = [v for (kind, place), v in settings.items() if kind == "tc.class" and int(place.split(":")[1], 16) >= 16]
    assert line == f"prio 3 rate {own} ceil {own}"


def test_a_changed_throttle_level_is_applied_before_the_next_interval() -> None:
    held: dict[str, int] = {}
    strategy = NetQoS(lambda: "eth0", lambda resource, directory: False, held=lambda: held)
    view = make_view(slo=slo(be={"egressLimit": 50}), pods=[net_pod("other", "BE", "10.0.0.2")])
    strategy.decide(view)
    assert not strategy.outdated()
    held["uid-other"] = 80
    assert strategy.outdated()
    strategy.decide(view)
    assert not strategy.outdated()
    held.clear()
    assert strategy.outdated()


def test_requests_of_the_full_bandwidth_leave_the_minimum_to_the_system() -> None:
    settings = values(present(decide(slo(ls={"egressRequest": 60}, be={"egressRequest": 40}))))
    assert settings["tc.class", "eth0 1:2"] == f"prio 1 rate {MIN_RATE_BPS} ceil {GBIT}"


@pytest.mark.parametrize(
    ("policy", "note"),
    [
        (slo(be={"egressLimit": 10}, total="0"), "totalNetworkBandwidth is not set"),
        (slo(be={"egressLimit": 10}, policy="terway-qos"), "left to terway-qos"),
        (slo(), "no class or pod requests bandwidth"),
    ],
)
def test_cases_without_settings(policy: dict[str, Any], note: str) -> None:
    decision = decide(policy, net_pod("a", "BE", "10.0.0.1"))
    assert decision is not None
    assert (decision.updates, decision.note) == ((), note)


def test_without_a_default_route_the_settings_stay() -> None:
    assert decide(slo(be={"egressLimit": 10}), interface=None) is None


def test_an_invalid_value_changes_nothing() -> None:
    netqos = strategy()
    before = present(netqos.decide(make_view(slo=slo(be={"egressLimit": "100M"})))).updates
    after = netqos.decide(make_view(slo=slo(be={"egressLimit": "2G"})))
    assert after is not None
    assert after.updates == before
    assert "be.egress_limit: 2G is not within" in after.note


PODS = (
    net_pod("s", "SYSTEM", "10.0.0.1"), net_pod("e", "LSE", "10.0.0.2"), net_pod("r", "LSR", "10.0.0.3"),
    net_pod("l", "LS", "10.0.0.4"), net_pod("b", "BE", "10.0.0.5"), net_pod("n", "", "10.0.0.6"),
    net_pod("h", "BE", "192.168.0.1", host=True), net_pod("v6", "BE", "fd00::1"), net_pod("wait", "BE", ""),
    net_pod("done", "BE", "10.0.0.9", phase="Succeeded"),
)  # fmt: skip


def test_addresses_by_class() -> None:
    settings = values(present(decide(slo(be={"egressLimit": 10}), *PODS)))
    assert {key[1]: value for key, value in settings.items() if key[0] == "ipset"} == {
        "system_class": "hash:ip 10.0.0.1",
        "ls_class": "hash:ip 10.0.0.2 10.0.0.3 10.0.0.4",
        "be_class": "hash:ip 10.0.0.5",
    }
    rules = {key[1]: value for key, value in settings.items() if key[0] == "iptables"}
    assert rules == {"system_class": "1:2", "ls_class": "1:3", "be_class": "1:4"}
    assert ("tc.sources", "eth0") not in settings


def test_addresses_are_matched_by_filters_without_ipset() -> None:
    decision = decide(slo(be={"egressLimit": 10}), *PODS, sets=NO_SETS)
    assert decision is not None
    settings = values(decision)
    assert not [key for key in settings if key[0] in ("ipset", "iptables")]
    assert settings["tc.sources", "eth0"] == "10.0.0.1=1:2 10.0.0.2=1:3 10.0.0.3=1:3 10.0.0.4=1:3 10.0.0.5=1:4"
    assert NO_SETS in decision.note
    assert "host network" in decision.note


def test_tasks_by_net_cls() -> None:
    decision = decide(slo(be={"egressLimit": 10}), *PODS, classids=True)
    assert decision is not None
    settings = values(decision)
    assert settings["tc.cgroup", "eth0"] == "on"
    ids = {key[1].rpartition("uid-")[2]: value for key, value in settings.items() if key[0] == "net_cls.classid"}
    pods = {name: value for name, value in ids.items() if "/" not in name}
    assert pods == {"s": 65538, "e": 65539, "r": 65539, "l": 65539, "b": 65540, "h": 65540, "v6": 65540, "wait": 65540}
    assert all(value == pods[name.partition("/")[0]] for name, value in ids.items())
    assert len(ids) == 2 * len(pods), "the containers that run already, too"
    assert "host's network" not in decision.note


def test_a_pod_with_its_own_limit() -> None:
    """20 Mbit/s, divided by eight once (spec 03 §8, 17)."""
    netqos = strategy(classids=True)
    mine, plain = net_pod("mine", "LS", "10.0.0.7", limit="20M"), net_pod("plain", "LS", "10.0.0.8")
    settings = values(present(netqos.decide(make_view(slo=slo(), pods=(mine, plain)))))
    (place,) = [
        key[1]
        for key, value in settings.items()
        if key[0] == "tc.class" and value == "prio 2 rate 20000000 ceil 20000000"
    ]
    minor = int(place.removeprefix("eth0 1:"), 16)
    assert minor >= FIRST_POD_MINOR
    assert settings["tc.sources", "eth0"] == f"10.0.0.7=1:{minor:x}"
    assert settings["ipset", "ls_class"] == "hash:ip 10.0.0.8", "a packet rule would win over its filter"
    assert settings["net_cls.classid", mine.meta.cgroup_dir] == 0x10000 + minor
    assert values(present(strategy(classids=True).decide(make_view(slo=slo(), pods=(mine, plain))))) == settings, (
        "after a restart"
    )
    assert present(netqos.decide(make_view(slo=slo(), pods=(plain,)))).updates == ()


def test_each_of_many_limited_pods_has_a_class() -> None:
    pods = [net_pod(f"p{n}", "BE", f"10.0.{n // 200}.{n % 200 + 1}", limit="1M") for n in range(300)]
    settings = values(present(decide(slo(), *pods)))
    assert len([key for key in settings if key[0] == "tc.class"]) == 303


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_invalid_limits_of_a_pod_are_ignored(limit: str) -> None:
    assert present(decide(slo(), net_pod("a", "LS", "10.0.0.7", limit=limit))).updates == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 0), (0, 0), (50, 500), (100, 1000), (101, 0), (-1, 0), ("700", 700), ("0.5k", 500)],
)
def test_sizes(value: int | str | None, expected: int) -> None:
    assert size(value, 1000) == expected


@pytest.mark.parametrize("value", ["1001", "-1", "x"])
def test_invalid_sizes(value: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        size(value, 1000)
