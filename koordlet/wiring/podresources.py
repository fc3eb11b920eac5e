"""The pod-resources API on a socket of koordlet's (gate PodResourcesProxy, spec 08 §6)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from koordlet.statesinformer.podresources.merge import Accelerators
from koordlet.statesinformer.podresources.proxy import SOCKET, PodResourcesProxy, Upstream
from koordlet.wiring.context import Context
from koordlet.wiring.devices import inventory
from koordlet.wiring.states import Cluster

LOOK_SECONDS = 10.0


def accelerators(context: Context) -> Accelerators:
    """As the Device has them."""
    found = inventory(context)
    return Accelerators(found.gpus or (), found.xpus or ())


def pod_resources(context: Context, cluster: Cluster) -> PodResourcesProxy:
    """Serve it; what can't be reached is tried again every LOOK_SECONDS."""
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
    context.runner.add(context.periodic("pod-resources", LOOK_SECONDS, proxy.maintain, immediate=False))
    return proxy
