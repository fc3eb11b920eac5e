"""The pod-resources API on a socket of koordlet's (gate PodResourcesProxy, spec 08 §6)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from koordlet.metriccache.facts import FACT_GPU, FACT_XPU
from koordlet.metricsadvisor.advisor import boot_clock
from koordlet.statesinformer.podresources import Accelerators
from koordlet.statesinformer.podresourcesproxy import SOCKET, PodResourcesProxy, Upstream
from koordlet.wiring.context import Context
from koordlet.wiring.states import Cluster

LOOK_SECONDS = 10.0
FACT_SECONDS = 60.0
"""Devices that nobody has looked at for so long are not named by their number any more."""


def pod_resources(context: Context, cluster: Cluster) -> PodResourcesProxy:
    """Serve it; what can't be reached is tried again every LOOK_SECONDS."""
    facts = context.cache.facts

    def accelerators() -> Accelerators:
        oldest = boot_clock() - FACT_SECONDS
        gpus, xpus = (facts.get(key, newer_than=oldest) or () for key in (FACT_GPU, FACT_XPU))
        return Accelerators(gpus, xpus)

    proxy = PodResourcesProxy(
        Path(context.options.pod_resources_proxy_path),
        Upstream(context.host.roots.var_lib_kubelet / "pod-resources" / SOCKET),
        lambda: cluster.pods.pods,
        cluster.states.sync_pods,
        accelerators,
        partial(context.registries.count, "pod_resources_calls_total"),
    )
    context.registries.view("pod_resources_proxy_up", lambda: [((proxy.problem,), 0.0 if proxy.problem else 1.0)])
    context.runner.add(proxy)
    context.runner.add(context.periodic("pod-resources", LOOK_SECONDS, proxy.look, immediate=False))
    return proxy
