"""Templates of shared GPUs: the ConfigMap, the choice of a node, the annotations (spec 06 §3.5.4)."""

from __future__ import annotations

from typing import Any

import pytest

from control.devices.templates import NO_TEMPLATES, TemplateError, any_template, read_templates, template_of
from control.scheduler.cycle.failures import FitError
from koordlet.api import names
from koordlet.api.core import ConfigMap, Pod
from koordlet.api.encoding import wire
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.plugins.deviceworld import DeviceWorld, equipped, gpu, with_devices

TABLE = """
huawei-Ascend-310P3:
  vir02: {huawei.com/npu-core: 2, huawei.com/npu-cpu: 2, koordinator.sh/gpu-memory: 6Gi}
  vir04: {huawei.com/npu-core: 4, huawei.com/npu-cpu: 4, koordinator.sh/gpu-memory: 12Gi}
  vir04_3c: {huawei.com/npu-core: 4, huawei.com/npu-cpu: 3, koordinator.sh/gpu-memory: 12Gi}
huawei-Ascend-910B:
  vir10: {huawei.com/npu-core: 10, huawei.com/npu-cpu: 3, koordinator.sh/gpu-memory: 16Gi}
"""
LABELS = {names.LABEL_GPU_VENDOR: "huawei", names.LABEL_GPU_MODEL: "Ascend-310P3"}
NONE = "no matched GPU shared resource template"


def part(core: int, cpu: int, memory: str) -> Pod:
    return with_devices(
        {
            names.RESOURCE_GPU_SHARED: "1",
            names.RESOURCE_HUAWEI_NPU_CORE: str(core),
            names.RESOURCE_HUAWEI_NPU_CPU: str(cpu),
            names.RESOURCE_GPU_MEMORY: memory,
        }
    )


def npu(minor: int) -> dict[str, Any]:
    resources = {
        names.RESOURCE_HUAWEI_NPU_CORE: "8",
        names.RESOURCE_HUAWEI_NPU_CPU: "7",
        names.RESOURCE_GPU_MEMORY: "24Gi",
        names.RESOURCE_GPU_MEMORY_RATIO: "100",
    }
    return gpu(minor, resources=resources)


def config(text: str, name: str = "gpu-shared-resource-templates") -> ConfigMap:
    body = {"metadata": {"name": name, "namespace": "koordinator-system"}, "data": {"data.yaml": text}}
    return wire.convert(body, ConfigMap)


def world(text: str | None = TABLE) -> DeviceWorld:
    gates = FeatureGates(SCHEDULER)
    gates.set({"DevicePluginAdaption": True})
    world = equipped([npu(0), npu(1)], labels=LABELS, device_labels=LABELS, gates=gates)
    if text is not None:
        world.objects.informer(ConfigMap).put(config(text))
    return world


def rejection(world: DeviceWorld, pod: Pod) -> str:
    with pytest.raises(FitError) as refused:
        world.place(pod)
    return refused.value.text()


@pytest.mark.parametrize(
    ("core", "cpu", "memory", "template"),
    [(2, 2, "6Gi", "vir02"), (4, 4, "12Gi", "vir04"), (4, 3, "12Gi", "vir04_3c")],
)
def test_the_allocation_names_the_template(core: int, cpu: int, memory: str, template: str) -> None:
    bound = world().run(part(core, cpu, memory))
    [device] = bound["gpu"]
    assert device["extension"]["gpuSharedResourceTemplate"] == template
    assert device["resources"][names.RESOURCE_HUAWEI_NPU_CORE] == str(core)


def test_the_device_plugin_reads_the_template() -> None:
    scene = world()
    bound = scene.bind(scene.place(part(4, 4, "12Gi")))
    assert bound.metadata.annotations["huawei.com/npu-core"] == "0-vir04"


def test_parts_share_a_device_until_it_is_full_and_survive_a_restart() -> None:
    scene = world()
    assert [scene.minors(part(4, 3, "12Gi"))["gpu"] for _ in range(4)] == [[0], [1], [0], [1]]
    scene.start()
    scene.objects.informer(ConfigMap).put(config(TABLE))
    assert "Insufficient GPU Devices" in rejection(scene, part(4, 3, "12Gi"))
    scene.remove(next(iter(scene.pods)))
    assert scene.minors(part(4, 3, "12Gi"))["gpu"] == [0]


@pytest.mark.parametrize(
    "pod",
    [
        part(3, 2, "6Gi"),  # of no template
        part(2, 2, "7Gi"),
        part(10, 3, "16Gi"),  # of another model
    ],
)
def test_other_amounts_are_refused(pod: Pod) -> None:
    assert NONE in rejection(world(), pod)


def test_changes_of_the_config_map() -> None:
    """Malformed content keeps the former one, deletion clears it, and another ConfigMap is no concern."""
    scene = world(None)
    informer, quarter = scene.objects.informer(ConfigMap), part(4, 4, "12Gi")
    assert NONE in rejection(scene, quarter)
    informer.put(config(TABLE, "other"))
    assert NONE in rejection(scene, quarter)
    informer.put(config(TABLE))
    scene.remove(scene.bind(scene.place(quarter)).metadata.uid)
    informer.put(config("huawei-Ascend-310P3: 7"))
    scene.remove(scene.bind(scene.place(quarter)).metadata.uid)
    assert scene.plugin.book.malformed["templates"] == 1
    informer.put(config(TABLE.replace("vir04:", "vir05:")))
    assert scene.run(quarter)["gpu"][0]["extension"]["gpuSharedResourceTemplate"] == "vir05"
    informer.remove(config(TABLE))
    assert NONE in rejection(scene, quarter)


def test_whole_npus_and_other_shared_gpus_need_no_template() -> None:
    scene = world(None)
    whole = with_devices({names.RESOURCE_HUAWEI_NPU_CORE: "8", names.RESOURCE_GPU_MEMORY_RATIO: "100"})
    assert scene.minors(whole) == {"gpu": [0]}
    half = with_devices({names.RESOURCE_GPU_MEMORY_RATIO: "50"})
    assert scene.minors(half) == {"gpu": [1]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "the text: must be a mapping"),
        ("m: {t: 7}", "'m'.'t': must be a mapping"),
        ("m: {t: {huawei.com/npu-core: many}}", "'m'.'t': "),
        ("m: {t: {huawei.com/npu-core: -1}}", "'m'.'t': "),
        ("m: [", "no YAML: "),
        ("a: &a {t: {x: 1}}\nb: *a", "aliases are not allowed"),
        ("[" * 100_000, "more than 3 nested mappings or lists"),
        ("m: " + "{a: " * 60_000, "more than 3 nested mappings or lists"),
        ("x" * 300_000, "300000 characters are more than 262144"),
        ("{" + ",".join(f"m{number}: {{}}" for number in range(300)) + "}", "the text: has 300 entries"),
    ],
)
def test_malformed_tables(text: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason.replace("'", ".").replace("[", r"\[")):
        read_templates(text)


def test_tables() -> None:
    assert read_templates("") == NO_TEMPLATES
    templates = read_templates(TABLE)
    amounts = {names.RESOURCE_HUAWEI_NPU_CORE: 2, names.RESOURCE_HUAWEI_NPU_CPU: 2, names.RESOURCE_GPU_MEMORY: 6 << 30}
    assert template_of(templates, "huawei", "Ascend-310P3", amounts) == "vir02"
    assert template_of(templates, "huawei", "Ascend-910B", amounts) is None
    assert any_template(templates, amounts)
    assert not any_template(templates, {**amounts, names.RESOURCE_HUAWEI_NPU_DVPP: 1})
