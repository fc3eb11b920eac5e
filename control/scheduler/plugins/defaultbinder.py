"""DefaultBinder: binds a pod to its node at the API server (spec 05 §4)."""

from __future__ import annotations

from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, error
from control.scheduler.state.pods import POD, PodInfo
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from koordlet.api.registry import resource_for
from koordlet.kube import KubeError


class DefaultBinder(Plugin):
    """POST of a Binding with the pod's uid, so that a newer pod of the same name is not bound."""

    name = "DefaultBinder"

    async def bind(self, state: CycleState, pod: PodInfo, node: str) -> PluginStatus:
        if pod.subject != POD:
            return SKIP
        client = self.handle.client
        if client is None:
            return error("no API server to bind pods at")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = resource_for(Pod).path(pod.namespace, pod.name, "binding")
        try:
            await client.raw("POST", path, body=wire.encode_plain(binding))
        except KubeError as failure:
            return error(str(failure))
        return SUCCESS
