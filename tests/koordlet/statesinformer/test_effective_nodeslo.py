"""NodeSLO over the defaults: the worked example of spec 02 §3.6."""

from koordlet.api.crs.slo import NodeSLO, NodeSLOSpec
from koordlet.api.encoding.wire import decode
from koordlet.statesinformer.nodeslo.effective import effective
from tests.present import present

EXAMPLE = b"""{"spec": {
  "resourceUsedThresholdWithBE": {"enable": true, "cpuSuppressThresholdPercent": 80},
  "resourceQOSStrategy": {"beClass": {"resctrlQOS": {
      "enable": true, "catRangeStartPercent": 0, "catRangeEndPercent": 20}}},
  "extensions": {"Object": {"mine": {"on": true}}},
  "hostApplications": [{"name": "nginx", "qos": "LS"}]}}"""


def test_worked_example() -> None:
    spec = effective(decode(EXAMPLE, NodeSLO).spec)
    threshold = spec.resource_used_threshold_with_be
    assert threshold is not None
    assert (
        threshold.enable,
        threshold.cpu_suppress_threshold_percent,
        threshold.cpu_suppress_policy,
        threshold.memory_evict_threshold_percent,
        threshold.cpu_evict_policy,
    ) == (True, 80, "cpuset", 70, "evictByRealLimit")
    classes = spec.resource_qos_strategy
    assert classes is not None
    assert classes.be_class is not None
    assert classes is not None
    be = classes.be_class.resctrl_qos
    assert be is not None
    assert (be.enable, be.cat_range_start_percent, be.cat_range_end_percent, be.mba_percent) == (True, 0, 20, 100)
    for neutral in (classes.lsr_class, classes.ls_class):
        assert neutral is not None
        assert neutral.cpu_qos is not None
        assert neutral.resctrl_qos is not None
        assert neutral is not None
        assert (neutral.resctrl_qos.cat_range_end_percent, neutral.cpu_qos.group_identity) == (100, 0)
    assert spec.extensions == {"Object": {"mine": {"on": True}}}
    assert [app.name for app in spec.host_applications] == ["nginx"]


def test_without_an_object_the_defaults_are_in_force() -> None:
    assert effective(None) == effective(NodeSLOSpec())
    assert present(effective(None).resource_used_threshold_with_be).enable is False
