"""Network bandwidth by Terway: its limits, in two files (spec 03 §4.13). Pure.

The files have bytes per second, while NodeSLO has bits per second or percent. Level 1 is LS, level 2 BE; tx is
outgoing.
"""

from __future__ import annotations

import json

from koordlet.api.sloconfig.resourceqos import NET_POLICY_TERWAY
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules.bandwidth import Bandwidth, of_class, of_pod, policy, total
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.resourceexecutor.terwayfiles import GLOBAL, PODS
from koordlet.runtimehooks.stages import followed_pods

REASON = "TerwayQoS"
NET_CLS = "/sys/fs/cgroup/net_cls"
PRIO = {"SYSTEM": 0, "LSE": 1, "LSR": 1, "LS": 1, "BE": 2}
PRIO_OF_KUBE = {"Guaranteed": 1, "Burstable": 1, "BestEffort": 2}


def global_config(node_bps: int, ls: Bandwidth, be: Bandwidth) -> str:
    """Content of the file for a node with `node_bps` bits per second."""
    rows = {"hw_tx_bps_max": node_bps, "hw_rx_bps_max": node_bps}
    for level, bandwidth in (("l1", ls), ("l2", be)):
        rows |= {
            f"offline_{level}_tx_bps_min": bandwidth.egress_request,
            f"offline_{level}_tx_bps_max": bandwidth.egress_limit,
            f"offline_{level}_rx_bps_min": bandwidth.ingress_request,
            f"offline_{level}_rx_bps_max": bandwidth.ingress_limit,
        }
    return "".join(f"{name} {bits // 8}\n" for name, bits in rows.items())


def pod_config(pod: PodView) -> dict[str, object]:
    """One entry of pod.json."""
    limits, meta = of_pod(pod), pod.meta
    return {
        "podName": meta.name,
        "podNamespace": meta.namespace,
        "podUID": meta.uid,
        "prio": PRIO.get(pod.raw_qos, PRIO_OF_KUBE.get(meta.kube_qos, 0)),
        "cgroupDir": f"{NET_CLS}/{meta.cgroup_dir}",
        "qosConfig": {
            "ingressBandwidth": 0 if limits is None else limits.ingress,
            "egressBandwidth": 0 if limits is None else limits.egress,
        },
    }


class TerwayQoS(Strategy):
    """The strategy."""

    name = "terwayqos"
    follows_pods = True

    def __init__(self) -> None:
        self._global: DesiredSetting | None = None

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module. With an invalid bandwidth the node's file stays unchanged. With another policy the files are
        removed, including those of an earlier boot."""
        strategy = view.slo.resource_qos_strategy
        if policy(strategy) != NET_POLICY_TERWAY:
            self._global = None
            absent = tuple(DesiredSetting(Setting(file), ABSENT, REASON, ABSENT) for file in (GLOBAL, PODS))
            return QoSDecision(absent, note=f"left to {policy(strategy)}")
        node_bps = total(view)
        note = ""
        try:
            ls = of_class(strategy, "ls_class", node_bps)
            be = of_class(strategy, "be_class", node_bps)
            self._global = DesiredSetting(Setting(GLOBAL), global_config(node_bps, ls, be), REASON, ABSENT)
        except ValueError as error:
            note = f"as before: {error}"
        pods = {pod.meta.uid: pod_config(pod) for pod in followed_pods(view)}
        text = json.dumps(pods, sort_keys=True)
        of_pods = DesiredSetting(Setting(PODS), text, REASON, ABSENT)
        return QoSDecision((of_pods,) if self._global is None else (self._global, of_pods), note=note)

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`: all pods are in one file."""
        return None if policy(view.slo.resource_qos_strategy) == NET_POLICY_TERWAY else ()
