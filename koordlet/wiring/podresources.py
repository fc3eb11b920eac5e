"""The pod-resources API on koordlet's own socket (gate PodResourcesProxy, spec 08 §6)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from koordlet.statesinformer.podresources.merge import Accelerators
from koordlet.statesinformer.podresources.proxy import SOCKET, PodResourcesProxy, Upstream
from koordlet.wiring.context import WiringContext
from koordlet.wiring.devices import inventory
from koordlet.wiring.states import Cluster

MAINTAIN_PERIOD_S = 10.0


def accelerators(context: WiringContext) -> Accelerators:
    """The accelerators in the Device object."""
    devices = inventory(context)
    return Accelerators(devices.gpus or (), devices.xpus or ())


def pod_resources(context: WiringContext, cluster: Cluster) -> None:
    """Serve the API; failed sockets are retried every `MAINTAIN_PERIOD_S`."""
    proxy = PodResourcesProxy(
        Path(context.options.pod_resources_proxy_path),
        Upstream(context.host.roots.var_lib_kubelet / "pod-resources" / SOCKET),
        lambda: cluster.pods.pods,
        cluster.states.sync_pods,
        partial(accelerators, context),
        partial(context.registries.count, "pod_resources_calls_total"),
    )
    context.registries.view("pod_resources_proxy_up", lambda: [((proxy.problem,), 0.0 if proxy.problem else 1.0)])
    context.runner.add(proxy)
    context.runner.add(context.periodic("pod-resources", MAINTAIN_PERIOD_S, proxy.maintain, immediate=False))
