"""The sources of the node's state: API server and kubelet, or the cgroup tree alone."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.kube import Client, ClientConfig, EventRecorder
from koordlet.kube.config import SERVICE_ACCOUNT
from koordlet.kube.credentials import TokenFile
from koordlet.kube.securepages import SecurePages
from koordlet.kube.serverversion import ServerVersionCheck
from koordlet.metricsadvisor.usage.allgroups import AllGroups
from koordlet.statesinformer.nodeslo.condition import UPDATE_PERIOD_S, NodeSLOCondition
from koordlet.statesinformer.pods.informer import PodsInformer
from koordlet.statesinformer.pods.kubelet import REQUEST_BUCKETS_S, KubeletClient
from koordlet.statesinformer.pods.kubelettls import KubeletVerification
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.statesinformer.pods.taskids import sandbox_of, task_ids
from koordlet.statesinformer.resourceviews import attach_resource_views
from koordlet.statesinformer.states import KubeStates, LocalStates
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.naming import CgroupDriver, detect_driver, find_driver
from koordlet.wiring.context import WiringContext
from koordlet.wiring.deviceminors import device_minors


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts that exist only with an API server."""

    client: Client
    states: KubeStates
    kubelet: KubeletClient
    pods: PodsInformer
    events: EventRecorder
    slo_condition: NodeSLOCondition


def local(context: WiringContext, groups: AllGroups | None) -> LocalStates:
    """`--standalone`: the workloads that the cgroup tree shows."""
    root = context.files.hierarchy("cpu")
    states = LocalStates(lambda: tree.walk(root), None if groups is None else lambda: groups.tree)
    states.refresh()
    context.set_node_name(context.options.node_name or os.uname().nodename)
    task = context.periodic("discover", context.options.discover_interval, states.refresh)
    context.pleg.add_handler(lambda _: states.expire())
    context.pleg.add_handler(context.early_trigger(task).on_any)
    context.runner.add(task)
    return states


def cluster(context: WiringContext) -> Cluster:
    """Informers for the node's API objects, and its pods from the kubelet."""
    options = context.options
    config = ClientConfig.load(
        options.kubeconfig or None,
        user_agent="koordlet",
        qps=options.kube_api_qps,
        burst=options.kube_api_burst,
    )
    if options.authorizes_any(options.addr, options.pprof_addr if options.enable_pprof else ""):
        context.secure_pages = SecurePages(options, config, registry=context.registries.internal)
    client = Client(config, registry=context.registries.internal)
    states = KubeStates(
        client,
        options.node_name,
        tree_driver=lambda: detect_driver(Path(context.files.hierarchy("cpu"))),
        process_driver=lambda port: find_driver(Path(context.files.hierarchy("cpu")), context.host.roots, port),
        query_config=not options.disable_query_kubelet_config,
        address_type=options.kubelet_preferred_address_type,
        insecure=options.kubelet_insecure_tls,
        read_only_port=options.kubelet_read_only_port,
        min_report_seconds=options.node_metric_min_report_interval,
    )
    duration = context.registries.histogram("kubelet_request_duration_seconds", REQUEST_BUCKETS_S)
    kubelet = KubeletClient(
        states.kubelet_url,
        _kubelet_headers(context, config),
        tls=KubeletVerification(
            options.kubelet_certificate_authority, context.host.roots.var_lib_kubelet, SERVICE_ACCOUNT / "ca.crt"
        ),
        timeout=options.kubelet_sync_timeout,
        duration=duration,
        on_own_delay=lambda seconds: context.registries.count("kubelet_own_delay_seconds_total", by=seconds),
    )
    context.registries.view("kubelet_decoded_bytes_total", lambda: [((), kubelet.decoded_bytes)])
    context.registries.view("kubelet_postponed_pods_total", lambda: [((), kubelet.postponed)])
    pods = states.connect(
        kubelet,
        (lambda meta, driver: _task_ids(context, meta, driver)) if options.enable_pod_taskids else None,
        lambda meta, driver: _sandbox_dir(context, meta, driver),
        context.host.facts.online_cpus,
        partial(device_minors, context),
    )
    states.node.add_handler(on_add=lambda node: context.set_node_name(node.metadata.name))
    context.runner.add_stop("kube client", client.close)
    version = ServerVersionCheck(client)
    context.health.check(version.name, lambda: version.problem)
    context.runner.add(version)
    context.runner.add_stop("kubelet client", kubelet.close)
    events = EventRecorder(client, "koordlet", options.node_name, limit_reasons=True)
    context.runner.add(events)
    for informer in (states.node, states.node_slo, states.node_metric):
        context.health.check(f"informer:{informer.name}", lambda informer=informer: informer.problem)  # type: ignore[misc]
        context.runner.add(informer)
    context.health.check("pods", lambda: pods.error or None)
    task = context.periodic("pods", options.kubelet_sync_interval, states.sync_pods)
    context.pleg.add_handler(context.early_trigger(task, lambda: kubelet.answer_bytes).on_added)
    context.runner.add(task)
    states.callbacks.attach(context.registries)
    context.runner.add(states.callbacks)
    attach_resource_views(states, context.registries)
    slo_condition = NodeSLOCondition(states, client, events, context.registries, wall=SYSTEM_CLOCK.now)
    condition_task = context.periodic("node-slo-condition", UPDATE_PERIOD_S, slo_condition.update)
    states.node_slo.add_handler(
        on_add=lambda _: condition_task.trigger(), on_update=lambda *_: condition_task.trigger()
    )
    context.runner.add(condition_task)
    return Cluster(client, states, kubelet, pods, events, slo_condition)


def _task_ids(context: WiringContext, meta: PodMeta, driver: CgroupDriver) -> Mapping[str, tuple[int, ...]]:
    cpuset = context.files.hierarchy("cpuset")
    return task_ids(meta, driver, lambda directory: tree.children(cpuset, directory), context.files.tasks)


def _sandbox_dir(context: WiringContext, meta: PodMeta, driver: CgroupDriver) -> str:
    cpuset = context.files.hierarchy("cpuset")
    sandbox = sandbox_of(meta, driver, lambda directory: tree.children(cpuset, directory))
    return "" if sandbox is None else sandbox[1]


def _kubelet_headers(context: WiringContext, config: ClientConfig) -> Callable[[], Awaitable[Mapping[str, str]]]:
    path = context.options.kubelet_token_file
    if not path:
        return config.credentials.headers
    return TokenFile(Path(path)).headers
