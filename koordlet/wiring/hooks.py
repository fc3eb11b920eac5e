"""Runtime hooks: the plugins, the protocols that carry them, and the registration with a runtime proxy (spec 03 §4).

Start order: the server, NRI, then (`enforcement`) the strategies' rounds, then the registration file, so that nobody
is sent here before there is somebody. Stop order is the reverse; the file stays (`runtimehooks.registration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.options import KoordletOptions
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
from koordlet.statesinformer.callbacks import CallbackTarget, StateType
from koordlet.statesinformer.states import KubeStates
from koordlet.system.cgroup.naming import kubepods_dir
from koordlet.system.devices.rdma import verbs_device
from koordlet.wiring.context import Context

log = get_logger(__name__)

REGISTER_SECONDS = 60.0
"""A proxy may come later than koordlet, and makes the directory."""
DAEMONSET_SOCKET = "/host-var-run-koordlet/koordlet.sock"


def announced_pods(states: KubeStates) -> AnnouncedPods:
    """Nobody yet; pods of the kubelet's directories that it does not show."""
    return AnnouncedPods(lambda: states.workloads.pods, lambda: kubepods_dir(states.driver), boot_clock)


def runtime_hooks(
    context: Context,
    states: KubeStates,
    strategies: Iterable[Strategy],
    manager: QoSManager,
    announced: AnnouncedPods,
    outline: Callable[[], NodeView | None],
    current: Current,
) -> Periodic:
    """Serve hooks by every protocol that is on; `outline` is None while the kubelet did not answer. The task that is
    returned registers with a runtime proxy."""
    options = context.options
    hooks = Hooks(
        [*_of(strategies), *_injectors(context)],
        context.registries,
        policy=FailurePolicy(options.runtime_hooks_plugin_failure_policy),
    )

    def view() -> NodeView:
        dirs = class_dirs(states)
        return outline() or NodeView(boot_clock(), states.slo, states.node.object, (), current, qos_dirs=dirs)

    patience = options.runtime_hooks_settle_timeout
    calls = HookCalls(
        hooks,
        announced,
        view,
        manager.follow,
        context.registries,
        follow_announced=manager.follow_announced,
        round_timeout=patience,
    )
    _follow_pods(states, calls)
    context.runner.add_stop("hook rounds", calls.close)
    return _registration(context, calls, _serve(context, calls))


def _of(strategies: Iterable[Strategy]) -> list[HookPlugin]:
    """Strategies that answer hooks as well."""
    return [cast(HookPlugin, strategy) for strategy in strategies if hasattr(strategy, "hook")]


def _injectors(context: Context) -> list[HookPlugin]:
    found: list[HookPlugin] = []
    if context.gates.enabled("GPUEnvInject"):
        library = context.options.hami_core_library_directory_path
        found.append(GPUEnvInject(library, monitor=context.gates.enabled("HamiCoreVGPUMonitor")))
    if context.gates.enabled("RDMADeviceInject"):
        found.append(RDMADeviceInject(lambda address: verbs_device(context.host.roots, address)))
    return found


def _follow_pods(states: KubeStates, calls: HookCalls) -> None:
    """Pods and containers that the kubelet shows for the first time are set up at once (spec 03 §4.4)."""
    seen = states.workloads.version

    def on_pods(_type: StateType, _marker: object, _target: CallbackTarget) -> None:
        nonlocal seen
        if states.workloads.version != seen:
            seen = states.workloads.version
            calls.follow_soon()

    states.callbacks.register(StateType.ALL_PODS, "runtime-hooks", "settings of pods that came", on_pods)


def _serve(context: Context, calls: HookCalls) -> RuntimeHookServer:
    options = context.options
    server = RuntimeHookServer(socket_path(context), calls, options.default_runtime_type)
    protocols: dict[str, RuntimeHookServer | NRIPlugin] = {"grpc": server}
    if options.enable_nri_runtime_hook:
        protocols["nri"] = NRIPlugin(_nri(context), calls, options.default_runtime_type)
    context.registries.view(
        "runtime_hook_protocol_up",
        lambda: [((name, one.problem), 0.0 if one.problem else 1.0) for name, one in protocols.items()],
    )
    for protocol in protocols.values():
        context.runner.add(protocol)
    return server


def _registration(context: Context, calls: HookCalls, server: RuntimeHookServer) -> Periodic:
    options = context.options
    directory = hook_directory(context)
    off = {HookStage(name) for name in options.runtime_hooks_disable_stages}
    stages = [stage for stage in calls.hooks.stages if stage not in off and stage in server.stages]

    def announce() -> None:
        if server.problem or not directory.is_dir():
            log.once(
                f"register:{server.problem}", "not registered with a runtime proxy",
                cause=server.problem or f"there is none: no directory {directory}",
            )  # fmt: skip
            return
        try:
            register(directory, options.runtime_hooks_host_endpoint, _policy(options), stages)
        except RegistrationFileError as error:
            log.once(f"register:{error}", "not registered with a runtime proxy", cause=str(error))

    return context.periodic("hook-registration", REGISTER_SECONDS, announce)


def _nri(context: Context) -> NRISettings:
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


def _policy(options: KoordletOptions) -> FailurePolicy:
    return FailurePolicy(options.runtime_hooks_failure_policy)


def socket_path(context: Context) -> Path:
    """Where koordlet listens: as flagged, else the host's path or where a DaemonSet mounts it."""
    options = context.options
    if options.runtime_hooks_addr:
        return Path(options.runtime_hooks_addr)
    return Path(options.runtime_hooks_host_endpoint if context.host.roots.host_mode else DAEMONSET_SOCKET)


def hook_directory(context: Context) -> Path:
    """Where hook servers register."""
    return Path(context.options.runtime_hooks_config_path or context.host.roots.hook_config)
