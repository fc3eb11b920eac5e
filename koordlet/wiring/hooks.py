"""Runtime hooks: the plugins, the protocols, and the registration with a runtime proxy (spec 03 §4).

Start order: the server, NRI, the strategies' rounds (`koordlet.wiring.enforcement`), then the registration file, so
that no call arrives before it can be answered. Stop order is the reverse; the file stays
(`koordlet.runtimehooks.protocols.registration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.qosmanager.engine.manager import QoSManager
from koordlet.qosmanager.engine.strategy import Strategy
from koordlet.qosmanager.engine.view import Current, NodeView
from koordlet.qosmanager.engine.viewbuilder import class_dirs
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.hooks.gpu import GPUEnvInject
from koordlet.runtimehooks.hooks.rdma import RDMADeviceInject
from koordlet.runtimehooks.protocols.nri import NRIPlugin, NRISettings
from koordlet.runtimehooks.protocols.registration import RegistrationFileError, register
from koordlet.runtimehooks.protocols.server import RuntimeHookServer
from koordlet.runtimehooks.stages import FailurePolicy, HookPlugin, Hooks, HookStage
from koordlet.statesinformer.callbacks import StateType
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cgroup.naming import kubepods_dir
from koordlet.system.devices.rdma import verbs_device
from koordlet.wiring.context import WiringContext
from koordlet.wiring.deviceminors import device_minors

log = get_logger(__name__)

REGISTER_PERIOD_S = 60.0
"""A runtime proxy may start later than koordlet; it creates the directory."""
SOCKET_PERIOD_S = 5.0
"""How often the hook socket is compared with the one at its path."""
DAEMONSET_SOCKET = "/host-var-run-koordlet/koordlet.sock"


def announced_pods(states: KubeStates) -> AnnouncedPods:
    """Pods that hooks report and the kubelet does not list yet; none at first."""
    return AnnouncedPods(lambda: states.workloads.pods, lambda: kubepods_dir(states.driver), boot_clock)


def runtime_hooks(
    context: WiringContext,
    states: KubeStates,
    strategies: Iterable[Strategy],
    manager: QoSManager,
    announced: AnnouncedPods,
    outline: Callable[[], NodeView | None],
    current: Current,
) -> Periodic:
    """Serve hooks by all enabled protocols. `outline` returns None until the kubelet has answered. Returns the task
    that registers with a runtime proxy."""
    options = context.options
    hooks = Hooks(
        [*(strategy for strategy in strategies if isinstance(strategy, HookPlugin)), *_injectors(context)],
        context.registries,
        policy=FailurePolicy(options.runtime_hooks_plugin_failure_policy),
    )

    def view() -> NodeView:
        dirs = class_dirs(states)
        return outline() or NodeView(boot_clock(), states.slo, states.node.object, (), current, qos_dirs=dirs)

    calls = HookCalls(
        hooks,
        announced,
        view,
        manager.follow,
        context.registries,
        follow_announced=manager.follow_announced,
        round_timeout=options.runtime_hooks_settle_timeout,
    )
    _follow_pods(states, calls)
    context.runner.add_stop("hook rounds", calls.close)
    return _registration(context, calls, _serve(context, calls))


def _injectors(context: WiringContext) -> list[HookPlugin]:
    plugins: list[HookPlugin] = []
    minors = partial(device_minors, context)
    if context.gates.enabled("GPUEnvInject"):
        library = context.options.hami_core_library_directory_path
        plugins.append(GPUEnvInject(library, monitor=context.gates.enabled("HamiCoreVGPUMonitor"), minors=minors))
    if context.gates.enabled("RDMADeviceInject"):
        plugins.append(RDMADeviceInject(lambda address: verbs_device(context.host.roots, address), minors=minors))
    return plugins


def _follow_pods(states: KubeStates, calls: HookCalls) -> None:
    """Settings of pods and containers that the kubelet lists for the first time are written at once (spec 03 §4.4)."""
    last_version = states.workloads.version

    def on_pods(_marker: object) -> None:
        nonlocal last_version
        if states.workloads.version != last_version:
            last_version = states.workloads.version
            calls.follow_soon()

    states.callbacks.register(StateType.ALL_PODS, "runtime-hooks", on_pods)


def _serve(context: WiringContext, calls: HookCalls) -> RuntimeHookServer:
    options = context.options
    server = RuntimeHookServer(socket_path(context), calls, options.default_runtime_type)
    protocols: dict[str, RuntimeHookServer | NRIPlugin] = {"grpc": server}
    if options.enable_nri_runtime_hook:
        protocols["nri"] = NRIPlugin(_nri(context), calls, options.default_runtime_type)
    context.registries.view(
        "runtime_hook_protocol_up",
        lambda: [((name, server.problem), 0.0 if server.problem else 1.0) for name, server in protocols.items()],
    )
    for protocol in protocols.values():
        context.runner.add(protocol)
    context.runner.add(context.periodic("hook-socket", SOCKET_PERIOD_S, server.watch, immediate=False))
    return server


def _registration(context: WiringContext, calls: HookCalls, server: RuntimeHookServer) -> Periodic:
    options = context.options
    directory = hook_directory(context)
    disabled = {HookStage(name) for name in options.runtime_hooks_disable_stages}
    stages = [stage for stage in calls.hooks.stages if stage not in disabled and stage in server.stages]
    policy = FailurePolicy(options.runtime_hooks_failure_policy)

    def write_registration() -> None:
        if server.problem or not directory.is_dir():
            cause = server.problem or f"there is no directory {directory}"
            log.once(f"register:{server.problem}", "Not registered with a runtime proxy", cause=cause)
            return
        try:
            register(directory, options.runtime_hooks_host_endpoint, policy, stages)
        except RegistrationFileError as error:
            log.once(f"register:{error}", "Not registered with a runtime proxy", cause=str(error))

    return context.periodic("hook-registration", REGISTER_PERIOD_S, write_registration)


def _nri(context: WiringContext) -> NRISettings:
    options = context.options
    return NRISettings(
        context.host.roots.var_run / options.runtime_hooks_nri_socket_path,
        options.runtime_hooks_nri_plugin_name,
        options.runtime_hooks_nri_plugin_index,
        connect=options.runtime_hooks_nri_connect_timeout,
        pause=options.runtime_hooks_nri_backoff_duration,
        factor=options.runtime_hooks_nri_backoff_factor,
        steps=options.runtime_hooks_nri_backoff_steps,
        longest=options.runtime_hooks_nri_backoff_cap,
    )


def socket_path(context: WiringContext) -> Path:
    """The socket of the hook server: the flag's, else the host's path or the path where a DaemonSet mounts it."""
    options = context.options
    if options.runtime_hooks_addr:
        return Path(options.runtime_hooks_addr)
    return Path(options.runtime_hooks_host_endpoint if context.host.roots.host_mode else DAEMONSET_SOCKET)


def hook_directory(context: WiringContext) -> Path:
    """The directory where hook servers register."""
    return Path(context.options.runtime_hooks_config_path or context.host.roots.hook_config)
