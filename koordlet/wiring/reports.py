"""The reports to the API server: NodeMetric with predictions, NodeResourceTopology."""

from __future__ import annotations

from pathlib import Path

from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.metricsadvisor.facts.node import FACT_BASIC, FACT_CPU, FACT_NUMA
from koordlet.prediction.checkpoints import CheckpointDirectory
from koordlet.prediction.models import PeakMethod, PredictionModels
from koordlet.prediction.service import SETTLE_TICKS, UPKEEP_SECONDS, NodeObjects, PredictionService, PredictionSettings
from koordlet.statesinformer.callbacks import StateType
from koordlet.statesinformer.nodemetric.reporter import CHECK_PERIOD_S, NodeMetricReporter
from koordlet.statesinformer.nrt.reporter import TopologyReporter
from koordlet.statesinformer.nrt.status import MachineInfo
from koordlet.statesinformer.states import KubeStates
from koordlet.wiring.context import WiringContext
from koordlet.wiring.states import Cluster


def node_metric(context: WiringContext, cluster: Cluster) -> NodeMetricReporter:
    """Report NodeMetric; returns the reporter, to which other parts may add extensions."""
    states = cluster.states
    prediction = _predict(context, states)
    reporter = NodeMetricReporter(
        cluster.client,
        states,
        context.cache,
        context.registries,
        clock=boot_clock,
        wall=SYSTEM_CLOCK.now,
        forecast=prediction.forecast,
        mirror=context.gates.enabled("NodeMetricPromMetrics"),
    )

    async def report() -> None:
        task.set_period(states.policy.report_seconds)  # read in each round (spec 02 §7.2)
        await reporter.report()

    interval = context.options.node_metric_min_report_interval
    task = context.periodic("report-node-metric", interval, report, immediate=False)
    states.node_metric.add_handler(
        on_add=lambda _: task.set_period(states.policy.report_seconds),
    )
    context.runner.add(task)
    context.runner.add(context.periodic("check-prediction", CHECK_PERIOD_S, reporter.check, immediate=False))
    return reporter


def _predict(context: WiringContext, states: KubeStates) -> PredictionService:
    options = context.options
    service = PredictionService(
        context.cache,
        NodeObjects(
            workloads=lambda: states.workloads if states.pods is not None and states.pods.synced else None,
            node=lambda: states.node.object,
            memory_policy=lambda: states.policy.memory,
        ),
        PredictionModels(
            cpu_half_life=options.prediction_cpu_histogram_decay_halflife,
            memory_half_life=options.prediction_memory_histogram_decay_halflife,
            peak=PeakMethod(options.prediction_peak_model),
            sigmas=options.prediction_sigmas,
        ),
        CheckpointDirectory(Path(options.prediction_checkpoint_filepath)),
        PredictionSettings(
            training_interval=options.prediction_training_interval,
            cold_start=options.prediction_cold_start_duration,
            margin=options.prediction_safety_margin_percent,
            expiration=options.prediction_model_expiration_duration,
            checkpoint_interval=options.prediction_model_checkpoint_interval,
            checkpoints_per_step=options.prediction_model_checkpoint_max_per_step,
            settle=SETTLE_TICKS * options.collect_res_used_interval,
        ),
        context.registries,
        clock=boot_clock,
        wall=SYSTEM_CLOCK.now,
    )

    def learn() -> None:
        service.train()
        if service.trained:  # until then it checks each second whether the first figures of pods exist
            training.set_period(options.prediction_training_interval)

    training = context.periodic("train-prediction", 1.0, learn)
    context.runner.add_stop("prediction checkpoints", service.checkpoint_all)
    context.runner.add(training)
    for name, step in (("expire", service.collect_garbage), ("checkpoint", service.checkpoint)):
        context.runner.add(context.periodic(f"{name}-prediction", UPKEEP_SECONDS, step, immediate=False))
    return service


def node_topology(context: WiringContext, cluster: Cluster) -> None:
    """Compute the NodeResourceTopology for koordlet and, with gate NodeTopologyReport, report it."""
    states = cluster.states
    pods = cluster.pods
    options = context.options

    def machine() -> MachineInfo | None:
        period = options.collect_node_cpu_info_interval
        cpus, basic, numa = (context.fact(key, period) for key in (FACT_CPU, FACT_BASIC, FACT_NUMA))
        return None if cpus is None or basic is None or numa is None else MachineInfo(cpus, basic, numa)

    def on_change() -> None:
        states.callbacks.trigger(StateType.NODE_TOPOLOGY)
        report.trigger()

    reporter = TopologyReporter(
        cluster.client,
        options.node_name,
        node=lambda: states.node.object,
        pods=lambda: pods.pods.values() if pods.answered else None,
        machine=machine,
        kubelet=None if options.disable_query_kubelet_config else cluster.kubelet.config,
        kubelet_dir=context.host.roots.var_lib_kubelet,
        registries=context.registries,
        on_change=on_change,
        per_cpu=context.gates.enabled("PerCPUMetric"),
    )
    states.callbacks.add_source(StateType.NODE_TOPOLOGY, lambda: reporter.local)
    context.health.check("node-topology", lambda: reporter.problem)
    report = context.periodic("report-node-topology", options.node_topology_sync_interval, reporter.report)
    context.runner.add(context.periodic("node-topology", options.node_topology_sync_interval, reporter.compute))
    if context.gates.enabled("NodeTopologyReport"):
        context.health.check(f"informer:{reporter.stored.name}", lambda: reporter.stored.problem)
        context.runner.add(reporter.stored)
        context.runner.add(report)
