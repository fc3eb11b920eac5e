"""Network bandwidth left to Terway: what it shall keep to, in two files (spec 03 §4.13). Pure.

Bytes a second throughout, whether NodeSLO says bits or percent. Level 1 is LS, level 2 BE; tx leaves the node.
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
from koordlet.runtimehooks.stages import followed

REASON = "TerwayQoS"
NET_CLS = "/sys/fs/cgroup/net_cls"
PRIO = {"SYSTEM": 0, "LSE": 1, "LSR": 1, "LS": 1, "BE": 2}
PRIO_OF_KUBE = {"Guaranteed": 1, "Burstable": 1, "BestEffort": 2}


def global_config(whole: int, ls: Bandwidth, be: Bandwidth) -> str:
    """Of a node with `whole` bit/s."""
    rows = {"hw_tx_bps_max": whole, "hw_rx_bps_max": whole}
    for level, given in (("l1", ls), ("l2", be)):
        rows |= {
            f"offline_{level}_tx_bps_min": given.egress_request,
            f"offline_{level}_tx_bps_max": given.egress_limit,
            f"offline_{level}_rx_bps_min": given.ingress_request,
            f"offline_{level}_rx_bps_max": given.ingress_limit,
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
    gate = "TerwayQoS"
    follows_pods = True

    def __init__(self) -> None:
        self._global: DesiredSetting | None = None

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module. A bandwidth that makes no sense leaves the node's file as it was; where it is not Terway's
        work there shall be no files, also none of an earlier boot."""
        strategy = view.slo.resource_qos_strategy
        if policy(strategy) != NET_POLICY_TERWAY:
            self._global = None
            gone = tuple(DesiredSetting(Setting(file), ABSENT, REASON, ABSENT) for file in (GLOBAL, PODS))
            return QoSDecision(gone, note=f"left to {policy(strategy)}")
        whole, note = total(view), ""
        try:
            ls, be = of_class(strategy, "ls_class", whole), of_class(strategy, "be_class", whole)
            self._global = DesiredSetting(Setting(GLOBAL), global_config(whole, ls, be), REASON, ABSENT)
        except ValueError as error:
            note = f"as before: {error}"
        pods = {pod.meta.uid: pod_config(pod) for pod in followed(view)}
        text = json.dumps(pods, sort_keys=True)
        updates = [DesiredSetting(Setting(PODS), text, REASON, ABSENT)]
        return QoSDecision(tuple(updates if self._global is None else [self._global, *updates]), note=note)

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`: all pods are in one file."""
        return None if policy(view.slo.resource_qos_strategy) == NET_POLICY_TERWAY else ()
