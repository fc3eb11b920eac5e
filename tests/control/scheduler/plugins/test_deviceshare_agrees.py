"""DeviceShare over random histories, with kills and restarts, agrees with its plain form (spec 06 §3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.scheduler.config.args import DeviceShareArgs, ScoringStrategy
from control.scheduler.cycle.evaluation import prepare
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.deviceshare.book import need_of_shape
from koordlet.api import names
from koordlet.api.annotations.device import ALLOCATED
from koordlet.api.core import ConfigMap, Pod
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node
from tests.control.scheduler.plain import devices as plain
from tests.control.scheduler.plugins.deviceworld import ALLOCATABLE, DeviceWorld, device, gpu, rdma, with_devices
from tests.control.scheduler.plugins.pluginworld import STEPS

SIZE = 1000
"""gpu-memory of a GPU."""
TEMPLATES: plain.Templates = {
    "A": {
        "quarter": {plain.NPU_CORE: 2, plain.NPU_CPU: 2, plain.MEMORY: 250},
        "half": {plain.NPU_CORE: 4, plain.NPU_CPU: 4, plain.MEMORY: 500},
        "half-3c": {plain.NPU_CORE: 4, plain.NPU_CPU: 3, plain.MEMORY: 500},
    },
    "B": {
        "small": {plain.NPU_CORE: 2, plain.NPU_CPU: 2, plain.MEMORY: 250},
        "large": {plain.NPU_CORE: 6, plain.NPU_CPU: 5, plain.MEMORY: 700},
    },
}
PARTS = ((2, 2, 250), (4, 4, 500), (4, 3, 500), (6, 5, 700), (3, 2, 250))
"""npu-core, npu-cpu and gpu-memory of pods; the last is of no template."""
VENDOR = "huawei"
SCOPES = {1: "Node", 2: "NUMANode", 3: "PCIe"}


@st.composite
def machines(draw: st.DrawFn) -> plain.PlainMachine:
    count = draw(st.sampled_from((2, 4, 8)))
    known = draw(st.sampled_from((True, True, True, False)))
    model = draw(st.sampled_from(("", "", "A", "B", "C")))
    npu = {plain.NPU_CORE: 8, plain.NPU_CPU: 7} if model else {plain.CORE: 100}
    gpus = [
        plain.PlainDevice(
            "gpu",
            minor,
            {**npu, plain.MEMORY: SIZE, plain.RATIO: 100},
            minor * 2 // count if known or minor else None,
            str(minor // 2),
            draw(st.integers(0, 9)) > 0,
        )
        for minor in range(count)
    ]
    nics = [
        plain.PlainDevice(
            "rdma",
            minor + 1,
            {"koordinator.sh/rdma": 100},
            minor * 2 // count,
            str(minor // 2),
            draw(st.integers(0, 9)) > 0,
            [f"0000:{10 + minor}:00.{number + 1}" for number in range(draw(st.integers(0, 2)))],
        )
        for minor in range(0, count, draw(st.sampled_from((1, 2))))
    ]
    partitions = None
    if draw(st.booleans()):
        pairs = [([2 * at, 2 * at + 1], draw(st.integers(1, 2))) for at in range(count // 2)]
        partitions = {1: [([minor], 1) for minor in range(count)], 2: pairs, count: [(list(range(count)), 1)]}
    return plain.PlainMachine(gpus + nics, {}, partitions, partitions is not None and draw(st.booleans()), model)


@st.composite
def needs(draw: st.DrawFn) -> tuple[plain.PlainNeed, Pod]:
    requests: dict[str, plain.PlainRequest] = {}
    amounts: dict[str, str] = {}
    hints: dict[str, Any] = {}
    form = draw(st.sampled_from(("none", "whole", "whole", "share", "memory", "spread", "part", "part")))
    if form == "whole":
        count = draw(st.sampled_from((1, 2, 3, 4, 8)))
        amounts["nvidia.com/gpu"] = str(count)
        requests["gpu"] = plain.PlainRequest({plain.CORE: 100, plain.RATIO: 100}, count)
    elif form == "share":
        ratio = draw(st.sampled_from((30, 50)))
        amounts["koordinator.sh/gpu"] = str(ratio)
        requests["gpu"] = plain.PlainRequest({plain.CORE: ratio, plain.RATIO: ratio}, 1, shared=True)
    elif form == "memory":
        size = draw(st.sampled_from((5, 300)))
        amounts["koordinator.sh/gpu-memory"] = str(size)
        requests["gpu"] = plain.PlainRequest({plain.MEMORY: size}, 1, shared=True)
    elif form == "part":
        core, cpu, size = draw(st.sampled_from(PARTS))
        each = {plain.NPU_CORE: core, plain.NPU_CPU: cpu, plain.MEMORY: size}
        amounts |= {names.RESOURCE_GPU_SHARED: "1", **{name: str(amount) for name, amount in each.items()}}
        requests["gpu"] = plain.PlainRequest(each, 1, shared=True)
    elif form == "spread":
        amounts |= {names.RESOURCE_GPU_SHARED: "2", plain.CORE: "80", plain.RATIO: "80"}
        requests["gpu"] = plain.PlainRequest({plain.CORE: 40, plain.RATIO: 40}, 2, shared=True)
    if "gpu" in requests and draw(st.integers(0, 3)) == 0:
        requests["gpu"].scope = draw(st.sampled_from((1, 2, 3)))
        hints["gpu"] = {"requiredTopologyScope": SCOPES[requests["gpu"].scope]}
    if form == "none" or draw(st.booleans()):
        number = draw(st.sampled_from((1, 60, 200)))
        requests["rdma"] = plain.PlainRequest({"koordinator.sh/rdma": min(number, 100)}, max(1, number // 100))
        amounts["koordinator.sh/rdma"] = str(number)
        if draw(st.booleans()):
            requests["rdma"].functions = True
            hints["rdma"] = {"vfSelector": {"matchLabels": {"type": "fast"}}}
        if draw(st.integers(0, 4)) == 0:
            requests["rdma"].for_all = True
            hints["rdma"] = {**hints.get("rdma", {}), "allocateStrategy": "ApplyForAll"}
    joint: dict[str, Any] | None = None
    need = plain.PlainNeed(requests)
    if len(requests) == 2 and draw(st.booleans()):
        types = draw(st.permutations(("gpu", "rdma")))
        need.joint = [kind for kind in types if not requests[kind].for_all]
        need.same_pcie = draw(st.booleans())
        joint = {"deviceTypes": list(types), **({"requiredScope": "SamePCIe"} if need.same_pcie else {})}
    return need, with_devices(amounts, hint=hints or None, joint=joint)


def real(name: str, machine: plain.PlainMachine) -> tuple[Any, Any]:
    listed: list[Mapping[str, Any]] = []
    for each in machine.devices:
        place: dict[str, Any] = {} if each.numa is not None else {"topology": None}
        if each.kind == "gpu":
            numa = each.numa or 0
            resources = {name: str(amount) for name, amount in each.total.items()}
            listed.append(gpu(each.minor, numa, each.pcie, health=each.health, resources=resources, **place))
        else:
            groups = [{"labels": {"type": "fast"}, "vfs": [{"minor": -1, "busID": bus} for bus in each.fast]}]
            listed.append(
                rdma(each.minor, each.numa or 0, each.pcie, health=each.health, vfGroups=groups if each.fast else [])
            )
    annotations, labels = {}, {}
    if machine.partitions is not None:
        table = {
            str(size): [{"minors": minors, "allocationScore": score} for minors, score in partitions]
            for size, partitions in machine.partitions.items()
        }
        annotations[names.ANNOTATION_GPU_PARTITIONS] = json.dumps(table)
        if machine.honors:
            labels[names.LABEL_GPU_PARTITION_POLICY] = "Honor"
    return (
        node(
            name,
            cpu="1000",
            memory="1000Gi",
            labels={names.LABEL_GPU_VENDOR: VENDOR, names.LABEL_GPU_MODEL: machine.model} if machine.model else None,
            **ALLOCATABLE,
        ),
        device(name, listed, labels=labels, annotations=annotations),
    )


def args(most: bool) -> DeviceShareArgs:
    kind = "MostAllocated" if most else "LeastAllocated"
    return DeviceShareArgs(
        scoring_strategy=ScoringStrategy(type=kind, resources=DeviceShareArgs().scoring_strategy.resources)
    )


def designating(
    need: plain.PlainNeed, pod: Pod, at: plain.PlainMachine, most: bool, short: bool
) -> tuple[plain.PlainNeed, Pod]:
    """The pod designates what it would get on the empty node, without one device if `short`. Others may hold them."""
    empty = verdict(need, replace(at, pods={}), most)
    if isinstance(empty, str) or any(request.for_all for request in need.requests.values()):  # "all" is what it names
        return need, pod
    if short:
        empty = {kind: listed[1:] for kind, listed in empty.items() if len(listed) > 1}
    designated = {
        kind: [
            {
                "minor": minor,
                "resources": {name: str(amount) for name, amount in amounts.items()},
                "extension": {"vfs": [{"minor": -1, "busID": bus} for bus in buses]},
            }
            for minor, amounts, buses in listed
        ]
        for kind, listed in empty.items()
    }
    if not designated:
        return need, pod
    requested_pod = with_devices({})
    requested_pod.spec = pod.spec
    requested_pod.metadata.annotations = {
        **pod.metadata.annotations,
        names.ANNOTATION_SCHEDULING_HINT: json.dumps({"extensions": {"DeviceShare": {}}}),
        names.ANNOTATION_DEVICE_ALLOCATED: json.dumps(designated),
    }
    return replace(need, designated=empty), requested_pod


def verdict(need: plain.PlainNeed, at: plain.PlainMachine, most: bool) -> str | plain.Taken:
    try:
        return plain.decide(need, at, most=most, templates=TEMPLATES)
    except plain.Rejected as rejected:
        return str(rejected)


class TemplateWorld(DeviceWorld):
    """With a ConfigMap of `TEMPLATES`."""

    def start(self) -> None:
        super().start()
        table = {f"{VENDOR}-{model}": listed for model, listed in TEMPLATES.items()}
        metadata = {"name": "gpu-shared-resource-templates", "namespace": "koordinator-system"}
        body = {"metadata": metadata, "data": {"data.yaml": json.dumps(table)}}
        self.objects.informer(ConfigMap).put(wire.convert(body, ConfigMap))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), st.lists(machines(), min_size=1, max_size=3), STEPS, st.booleans())
def test_device_share_agrees_with_its_plain_form(
    data: st.DataObject, nodes: list[plain.PlainMachine], steps: list[tuple[str, int]], most: bool
) -> None:
    for machine in nodes:
        machine.pods = {}
    world = TemplateWorld(*(real(f"n{at}", node) for at, node in enumerate(nodes)), args=args(most))
    kinds = data.draw(st.lists(needs(), min_size=1, max_size=3))
    for number, (step, at) in enumerate(steps):
        if step == "delete":
            uid = world.remove_one(at)
            for machine in nodes:
                machine.pods.pop(uid, None)
        elif step == "restart":
            world.start()
        else:
            need, pod = kinds[at % len(kinds)]
            if step in ("designate", "short"):
                need, pod = designating(need, pod, nodes[at % len(nodes)], most, step == "short")
            place(world, nodes, need, renamed(pod, number), step, most)
        compare_holdings(world, nodes)


def renamed(pod: Pod, number: int) -> Pod:
    requested_pod = with_devices({}, name=f"p{number}")
    requested_pod.spec, requested_pod.metadata.annotations = pod.spec, dict(pod.metadata.annotations)
    return requested_pod


def place(
    world: DeviceWorld, nodes: list[plain.PlainMachine], need: plain.PlainNeed, pod: Pod, step: str, most: bool
) -> None:
    verdicts = [verdict(need, at, most) for at in nodes]
    compare_filters_and_scores(world, nodes, need, pod, verdicts, most)
    try:
        placement = world.place(pod)
    except FitError:
        assert all(isinstance(each, str) for each in verdicts)
        return
    if step == "kill before bind":
        pod = world.prepared(placement)  # the patch was sent, the binding was not
        world.start()
        compare_holdings(world, nodes)
        placement = world.place(pod)
    elif step == "kill":
        world.start()
        return
    chosen = verdicts[placement.row]
    assert not isinstance(chosen, str)
    bound = world.bind(placement)
    assert read(bound) == chosen
    assert templates_of(bound) == {plain.template(need, nodes[placement.row], TEMPLATES)} - {""}
    nodes[placement.row].pods[bound.metadata.uid] = chosen


def compare_filters_and_scores(
    world: DeviceWorld,
    nodes: list[plain.PlainMachine],
    need: plain.PlainNeed,
    pod: Pod,
    verdicts: list[Any],
    most: bool,
) -> None:
    info, state, plugin = world.cluster.info(pod), CycleState(), world.plugin
    prepared = prepare(world.cycle.framework, state, info).status
    if plain.hopeless(need, TEMPLATES):
        assert not prepared.ok and plain.NO_TEMPLATE in prepared.message
        return
    assert prepared.ok
    rows = np.arange(len(nodes))
    parsed = need_of_shape(info.shape)
    columns, scores = plugin._filter.check(parsed, rows), plugin._score.scores(parsed, rows)
    assert columns.tolist() == plugin.filter(state, info, rows).tolist()
    assert scores.tolist() == plugin.score(state, info, rows).tolist()
    for row, (expected, at) in enumerate(zip(verdicts, nodes, strict=True)):
        message = plugin.reasons.status(int(columns[row])).message
        if need.designated and isinstance(expected, str):
            assert message, "which of several reasons is named is not specified for designated devices"
        else:
            assert message == (expected if isinstance(expected, str) else "")
        if not isinstance(expected, str):
            assert int(scores[row]) == plain.score(need, at, most=most)


def compare_holdings(world: DeviceWorld, nodes: list[plain.PlainMachine]) -> None:
    book = world.plugin.book
    book.sync()
    for row, at in enumerate(nodes):
        holdings = book.holdings.get(row)
        held = {} if holdings is None else holdings.given
        assert {uid: _taken(holding.devices) for uid, holding in held.items()} == at.pods
        for described in at.devices:
            used = at.used(described)
            fits = all(used[name] <= described.total.get(name, used[name]) for name in used)
            assert fits, "a device is allocated twice"
            assert described.health or not used, "an unhealthy device is allocated"
        buses = [bus for taken in at.pods.values() for _, _, own in taken.get("rdma", []) for bus in own]
        assert len(buses) == len(set(buses)), "a virtual function is allocated twice"


def _taken(holding: Any) -> plain.Taken:
    return {
        kind: [(device.minor, dict(device.amounts), [bus for _, bus in device.functions]) for device in listed]
        for kind, listed in holding.items()
    }


def templates_of(bound: Pod) -> set[str]:
    allocated = ALLOCATED.get(bound.metadata.annotations) or {}
    extensions = [gpu.extension for gpu in allocated.get("gpu", ()) if gpu.extension is not None]
    return {extension.gpu_shared_resource_template for extension in extensions} - {""}


def read(bound: Pod) -> plain.Taken:
    allocated = ALLOCATED.get(bound.metadata.annotations) or {}
    return {
        kind: [
            (
                allocation.minor,
                {name: quantity.value() for name, quantity in allocation.resources.items()},
                [] if allocation.extension is None else [function.bus_id for function in allocation.extension.vfs],
            )
            for allocation in listed
        ]
        for kind, listed in allocated.items()
    }
