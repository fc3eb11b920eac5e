"""Validation by the ConfigMap webhook (spec 01 §6.6), with the corrections of §9 A11-A13 and A15."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordlet.api.meta import LabelSelector, LabelSelectorRequirement
from koordlet.api.sloconfig.overlap import TooManyLabelSets, label_sets, overlapping
from koordlet.api.sloconfig.webhook import Rejection, node_conflict, validate


def entry(labels: dict[str, str], name: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "nodeSelector": {"matchLabels": labels}, **fields}


def threshold(cluster: dict[str, Any] | None = None, *nodes: dict[str, Any]) -> dict[str, str]:
    return {"resource-threshold-config": json.dumps({"clusterStrategy": cluster, "nodeStrategies": list(nodes)})}


def qos(cluster: dict[str, Any] | None = None, *nodes: dict[str, Any]) -> dict[str, str]:
    return {"resource-qos-config": json.dumps({"clusterStrategy": cluster, "nodeStrategies": list(nodes)})}


def network(**classes: Any) -> dict[str, Any]:
    return {f"{name}Class": {"networkQOS": values} for name, values in classes.items()}


def bandwidth(total: str) -> dict[str, str]:
    return {"system-config": json.dumps({"clusterStrategy": {"totalNetworkBandwidth": total}})}


def refused(rejection: Rejection | None) -> tuple[str, Any]:
    assert rejection is not None
    return rejection.reason, rejection.message


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"colocation-config": ""},
        threshold({"memoryEvictThresholdPercent": 75}),
        threshold({"memoryEvictThresholdPercent": 75, "memoryEvictLowerPercent": 74}),
        threshold({}, entry({"a": "1"}, memoryEvictLowerPercent=60), entry({"a": "2"})),
        {"colocation-config": '{"batchCPUThresholdPercent":200,"resourceDiffThreshold":1}'},
        {"cpu-burst-config": '{"clusterStrategy":{"cfsQuotaBurstPeriodSeconds":-1}}'},
        qos({"beClass": {"cpuQOS": {"groupIdentity": -1}}}),
        qos({"beClass": {"resctrlQOS": {"catRangeEndPercent": 20}}}),
        qos(network(ls={"ingressRequest": 60}, be={"ingressRequest": 40, "egressRequest": 100})),
        qos(network(ls={"ingressRequest": "60M"})),
        {**qos(network(ls={"ingressRequest": "60M"}, be={"ingressRequest": "40M"})), **bandwidth("100M")},
        {**qos(network(ls={"ingressRequest": 60})), **bandwidth("0")},
        {"host-application-config": "{", "cpu-normalization-config": "{", "my-extension": "{"},
    ],
    ids=[
        "nothing", "empty", "one of a pair (A12)", "pair", "lower below the default", "colocation at its bounds",
        "burst", "qos without system-config (A11)", "half a range (A12)", "percentages to 100",
        "quantity without total", "quantities within the total", "percentages with bandwidth 0 (A13)",
        "keys that are not checked",
    ],
)  # fmt: skip
def test_accepts(data: dict[str, str]) -> None:
    assert validate(data) is None


@pytest.mark.parametrize(
    ("data", "path", "text"),
    [
        (threshold({"cpuSuppressThresholdPercent": 101}), "clusterStrategy.cpuSuppressThresholdPercent",
         "101 is greater than 100"),
        (threshold({"cpuEvictTimeWindowSeconds": 0}), "clusterStrategy.cpuEvictTimeWindowSeconds",
         "0 is not greater than 0"),
        (threshold({"allocatableEvictPriorityThreshold": 8000}), "clusterStrategy.allocatableEvictPriorityThreshold",
         "8000 is greater than 7999"),
        (threshold({"memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 70}),
         "clusterStrategy.memoryEvictThresholdPercent", "70 is not greater than memoryEvictLowerPercent 70"),
        (threshold({"memoryEvictLowerPercent": 75}), "clusterStrategy.memoryEvictThresholdPercent",
         "70 is not greater than memoryEvictLowerPercent 75"),
        (threshold({"memoryEvictLowerPercent": 65}, entry({"a": "b"}, "n", memoryEvictThresholdPercent=60)),
         "nodeStrategies[n].memoryEvictThresholdPercent", "60 is not greater than memoryEvictLowerPercent 65"),
        ({"colocation-config": '{"resourceDiffThreshold":1.5}'}, "resourceDiffThreshold",
         "1.5 is greater than 1"),
        ({"colocation-config": '{"nodeConfigs":[{"name":"n","nodeSelector":{"matchLabels":{"a":"b"}},'
          '"midUnallocatedPercent":101}]}'}, "nodeConfigs[n].midUnallocatedPercent", "101 is greater than 100"),
        ({"colocation-config": '{"degradeTimeMinutes":0}'}, "degradeTimeMinutes", "0 is less than 1"),
        ({"cpu-burst-config": '{"clusterStrategy":{"cpuBurstPercent":0}}'}, "clusterStrategy.cpuBurstPercent",
         "0 is less than 1"),
        ({"system-config": '{"clusterStrategy":{"watermarkScaleFactor":401}}'},
         "clusterStrategy.watermarkScaleFactor", "401 is greater than 400"),
        (qos({"lsClass": {"cpuQOS": {"groupIdentity": 3}}}), "clusterStrategy.lsClass.cpuQOS.groupIdentity",
         "3 is greater than 2"),
        (qos({"beClass": {"resctrlQOS": {"catRangeStartPercent": 40}}}),
         "clusterStrategy.beClass.resctrlQOS.catRangeEndPercent", "30 is not greater than"),
        (qos(network(ls={"ingressRequest": 101})), "clusterStrategy.lsClass.networkQOS.ingressRequest",
         "101 percent is not within 0 and 100"),
        (qos(network(system={"egressLimit": "fast"})), "clusterStrategy.systemClass.networkQOS.egressLimit",
         "'fast' is not a quantity"),
        (qos(network(ls={"ingressRequest": 60}, be={"ingressRequest": 41})),
         "clusterStrategy.*.networkQOS.ingressRequest", "requests sum to 101 percent, more than 100"),
        (qos(network(ls={"egressRequest": 60}, be={"egressRequest": "1M"})),
         "clusterStrategy.*.networkQOS.*Request", "requests mix percentages and quantities"),
        (qos(network(ls={"ingressRequest": 60}, be={"egressRequest": "1M"})),
         "clusterStrategy.*.networkQOS.*Request", "requests mix percentages and quantities"),
        ({**qos(network(ls={"egressRequest": "60M"}, be={"egressRequest": "41M"})), **bandwidth("100M")},
         "clusterStrategy.*.networkQOS.egressRequest", "requests sum to 101M, more than the total bandwidth 100M"),
        ({**qos(None, entry({"a": "b"}, "n", **network(ls={"ingressRequest": "200M"}))), **bandwidth("100M")},
         "nodeStrategies[n].*.networkQOS.ingressRequest", "requests sum to 200M, more than"),
        (threshold({}, {"name": "b", "nodeSelector": {}}), "nodeStrategies[b].nodeSelector", "must have at least one"),
        (threshold({}, {"name": "b"}), "nodeStrategies[b].nodeSelector", "must have at least one"),
        (threshold({}, {"nodeSelector": {"matchExpressions": [{"key": "k", "operator": "Like"}]}}),
         "nodeStrategies[0].nodeSelector", "matchExpressions[k]: 'Like' is not a valid"),
    ],
)  # fmt: skip
def test_refuses_parameters(data: dict[str, str], path: str, text: str) -> None:
    reason, message = refused(validate(data))
    assert reason == "ConfigParamInvalid"
    assert list(message) == [path] and message[path].startswith(text)


@pytest.mark.parametrize(
    ("policy", "path", "text"),
    [
        ({"stepPercent": 0}, "stepPercent", "0 is less than 1"),
        ({"culprits": "all"}, "culprits", "must be any or lent"),
        ({"floorPercent": "low"}, "floorPercent", "must be an integer"),
    ],
)
def test_refuses_invalid_interference_policies_at_every_level(policy: dict[str, Any], path: str, text: str) -> None:
    cluster = {"extensions": {"interference": policy, "mine": 1}}
    for document, where in (
        (cluster, ""),
        ({"nodeConfigs": [entry({"a": "1"}, **cluster)]}, "nodeConfigs[0]."),  # type: ignore[arg-type]
    ):
        reason, message = refused(validate({"colocation-config": json.dumps(document)}))
        assert reason == "ConfigParamInvalid"
        assert text in message[f"{where}extensions.interference.{path}"]
    good = {"extensions": {"interference": {"stepPercent": 1}, "mine": 1}}
    assert validate({"colocation-config": json.dumps(good)}) is None


def test_node_total_with_the_identical_selector() -> None:
    system = {
        "system-config": json.dumps(
            {
                "clusterStrategy": {"totalNetworkBandwidth": "100M"},
                "nodeStrategies": [entry({"a": "b"}, totalNetworkBandwidth="1G")],
            }
        )
    }
    big = network(ls={"ingressRequest": "200M"})
    assert validate({**qos(None, entry({"a": "b"}, **big)), **system}) is None
    assert validate({**qos(None, entry({"a": "c"}, **big)), **system}) is not None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"colocation-config": "{"}, "colocation-config: is not valid JSON"),
        ({"cpu-burst-config": '{"clusterStrategy":{"policy":1}}'}, "cpu-burst-config: clusterStrategy.policy: must be"),
        ({**qos(), "system-config": "{"}, "system-config: is not valid JSON"),
    ],
)
def test_refuses_invalid_json(data: dict[str, str], message: str) -> None:
    reason, text = refused(validate(data))
    assert reason == "ParseConfigFail" and text.startswith(message)


def test_unchanged_keys_are_not_checked() -> None:
    bad = {"colocation-config": "{"}
    assert validate(bad, bad) is None
    assert validate(bad, {"colocation-config": "{}"}) is not None


def test_names() -> None:
    twice = threshold({}, entry({"a": "1"}, "n"), entry({"a": "2"}, "n"))
    assert validate(twice) is None
    assert refused(validate(twice, names_needed=True))[1] == {"nodeStrategies[n].name": "is used twice"}
    message = refused(validate(threshold({}, entry({"a": "1"})), names_needed=True))[1]
    assert message == {"nodeStrategies[0].name": "must not be empty"}


def test_overlap_and_its_error_body() -> None:
    selector = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}
    rejection = validate(threshold({}, {"name": "n1", "nodeSelector": selector}, entry({"a": "2"}, "n2")))
    assert str(rejection) == (
        '___{"message":{"config":"resource-threshold-config","strategies":["n1","n2"]},'
        '"reason":"NodeStrategiesOverlap"}___'
    )


NODES = {"node-0": {"a": "1"}, "node-1": {"a": "1", "b": "1"}}


def test_existing_nodes_must_not_match_two_entries() -> None:
    data = threshold({}, entry({"a": "1"}, "n1"), entry({"b": "1"}, "n2"))
    conflict = {"config": "resource-threshold-config", "strategies": ["n1", "n2"], "exampleNodes": ["node-1"]}
    assert validate(data) is None
    assert refused(validate(data, nodes=NODES)) == ("ExistNodeConfict", conflict)
    assert refused(node_conflict(data, "node-1", NODES["node-1"])) == ("ExistNodeConfict", conflict)
    assert node_conflict(data, "node-0", NODES["node-0"]) is None
    assert node_conflict({"colocation-config": "{"}, "node-0", NODES["node-0"]) is None


def selector(**values: list[str]) -> LabelSelector:
    expressions = [LabelSelectorRequirement(key=k, operator="In", values=v) for k, v in values.items()]
    return LabelSelector(match_expressions=expressions)


def test_overlap_takes_every_combination() -> None:
    square = selector(a=["1", "2"], b=["1", "2"])
    assert len(list(label_sets(square))) == 4
    assert overlapping([square, selector(a=["1"], b=["2"])]) == [0, 1]
    assert overlapping([selector(a=["1"]), selector(b=["1"])]) == []
    assert overlapping([LabelSelector(match_labels={"a": "1"}), None, selector(a=["2", "1"])]) == [0, 2]


def test_combinations_are_bounded() -> None:
    values = [str(n) for n in range(200)]
    with pytest.raises(TooManyLabelSets, match="8000000 combinations"):
        list(label_sets(selector(a=values, b=values, c=values)))
    expressions = [{"key": k, "operator": "In", "values": values} for k in "abc"]
    data = threshold({}, {"nodeSelector": {"matchExpressions": expressions}}, entry({"d": "1"}))
    assert refused(validate(data))[0] == "ConfigParamInvalid"


def test_the_reference_example_is_refused_for_its_empty_selector() -> None:
    data = threshold(
        {"enable": True},
        entry({"xxx": "yyy"}, "a", memoryEvictThresholdPercent=75),
        {"name": "b", "nodeSelector": {}, "enable": False},
    )
    assert list(refused(validate(data))[1]) == ["nodeStrategies[b].nodeSelector"]


PART: dict[str, Any] = {"clusterStrategy": {}}
FULL = entry({"a": "1"}, "n", **network(ls={"ingressRequest": 60}))


@pytest.mark.parametrize(
    ("data", "reason", "text"),
    [
        (threshold({"memoryEvictThresholdPercent": 75}), "ConfigParamInvalid", "memoryEvictThresholdPercent is"),
        (qos({"beClass": {"resctrlQOS": {"catRangeEndPercent": 20}}}), "ConfigParamInvalid", "catRangeStartPercent"),
        (qos({}), "ParseConfigFail", "system-config"),
        ({**qos(network(ls={"ingressRequest": "60M"})), **bandwidth("100M")}, "ConfigParamInvalid", "more than 100"),
        ({**qos(network(ls={"ingressRequest": 60})), **bandwidth("0")}, "ConfigParamInvalid", "more than the total"),
        ({**qos(network(ls={"ingressRequest": 60})), "system-config": json.dumps(PART)}, "ConfigParamInvalid", "dth 0"),
        (
            {**qos(None, FULL), "system-config": json.dumps(
                {"clusterStrategy": {"totalNetworkBandwidth": "1G"}, "nodeStrategies": [entry({"a": "2"})]})},
            "ConfigParamInvalid", "more than the total bandwidth 0",
        ),
    ],
    ids=["one of a pair (22)", "half a range (22)", "no system-config (23)", "quantities as percent (23)",
         "percent as quantities (23)", "no bandwidth is 0 (23)", "no partner is 0 (23)"],
)  # fmt: skip
def test_strict_parity_refuses_what_the_reference_refuses(data: dict[str, str], reason: str, text: str) -> None:
    assert validate(data) is None
    messages = refused(validate(data, strict_parity=True))
    assert messages[0] == reason
    assert text in str(messages[1])


@pytest.mark.parametrize(
    "data",
    [
        threshold({"memoryEvictThresholdPercent": 75, "memoryEvictLowerPercent": 74}),
        {**qos({"beClass": {"cpuQOS": {"groupIdentity": -1}}}), **bandwidth("1G")},
        {**qos(network(ls={"ingressRequest": 60}, be={"ingressRequest": 40})), **bandwidth("100")},
        {**qos(None, FULL), **bandwidth("60")},
        {**qos(network(ls={"ingressRequest": 60})), "system-config": json.dumps({"nodeStrategies": []})},
    ],
    ids=[
        "a whole pair",
        "nothing of the network",
        "percent within bit/s",
        "an entry under the cluster's bandwidth",
        "no clusterStrategy in system-config",
    ],
)
def test_strict_parity_accepts_the_rest(data: dict[str, str]) -> None:
    assert validate(data, strict_parity=True) is None


def test_strict_parity_compares_pairs_before_merging() -> None:
    data = threshold({"cpuEvictBESatisfactionUpperPercent": 30, "cpuEvictBESatisfactionLowerPercent": 30})
    assert refused(validate(data, strict_parity=True))[1] == {
        "clusterStrategy.cpuEvictBESatisfactionUpperPercent":
            "30 is not greater than cpuEvictBESatisfactionLowerPercent 30"
    }  # fmt: skip
