"""Translation, amplification, node reservation and device requests: spec 01 §4.3, §5.10, §10."""

from __future__ import annotations

import pytest

from koordlet.api import resources
from koordlet.api.annotations.node import NodeReservation
from koordlet.api.devicerequest import DeviceRequestError, gpu_request, share_request
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.resources import translate_name


def amounts(**texts_by_name: str) -> dict[str, Quantity]:
    """Short names: gpu_core is koordinator.sh/gpu-core, batch_cpu is kubernetes.io/batch-cpu."""
    return {name(key): Quantity(text) for key, text in texts_by_name.items()}


def name(short: str) -> str:
    if short.startswith(("batch", "mid")):
        return "kubernetes.io/" + short.replace("_", "-")
    if short == "nvidia":
        return "nvidia.com/gpu"
    if short.startswith("npu"):
        return "huawei.com/" + short.replace("_", "-")
    if short == "shared":
        return "koordinator.sh/gpu.shared"
    return short if short in ("cpu", "memory", "pods") else "koordinator.sh/" + short.replace("_", "-")


def texts(quantities: dict[str, Quantity]) -> dict[str, str]:
    return {key: str(amount) for key, amount in quantities.items()}


# --- translation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority_class", "native", "extended"),
    [
        ("koord-batch", "cpu", "kubernetes.io/batch-cpu"),
        ("koord-batch", "memory", "kubernetes.io/batch-memory"),
        ("koord-mid", "cpu", "kubernetes.io/mid-cpu"),
        ("koord-mid", "memory", "kubernetes.io/mid-memory"),
        ("koord-batch", "pods", "pods"),
        ("koord-prod", "cpu", "cpu"),
        ("koord-free", "cpu", "cpu"),
    ],
)
def test_names_by_class(priority_class: str, native: str, extended: str) -> None:
    assert translate_name(priority_class, native) == extended


def test_deprecated_names() -> None:
    old = {"koordinator.sh/batch-cpu": Quantity("1k"), "kubernetes.io/gpu-core": Quantity("50"), "cpu": Quantity("1")}
    assert texts(resources.without_deprecated(old)) == {
        "cpu": "1", "kubernetes.io/batch-cpu": "1k", "koordinator.sh/gpu-core": "50",
    }  # fmt: skip
    both = {"koordinator.sh/batch-cpu": Quantity("1"), "kubernetes.io/batch-cpu": Quantity("2")}
    assert resources.without_deprecated(both) == both


def test_webhook_amplification_truncates() -> None:
    raw = amounts(cpu="101m", memory="16Gi", pods="110")
    result = resources.amplified_allocatable(
        amounts(cpu="1", pods="110"), raw, {"cpu": 1.1, "memory": 1.5, "pods": 2.0}
    )
    assert texts(result) == {"cpu": "111m", "pods": "110", "memory": "24Gi"}
    assert resources.amplified_allocatable(raw, raw, {"cpu": 1.0}) == raw
    assert resources.amplified_allocatable(raw, {}, {"cpu": 2.0}) == raw


def test_raw_allocatable_follows_what_the_kubelet_reports() -> None:
    amplified, raw = amounts(cpu="12", memory="24Gi"), amounts(cpu="8", memory="16Gi")
    incoming = amounts(cpu="10", memory="16Gi", pods="110")
    assert resources.next_raw_allocatable(amplified, amplified, raw) is None
    assert resources.next_raw_allocatable({}, incoming, None) == amounts(cpu="10", memory="16Gi")
    assert resources.next_raw_allocatable(amplified, incoming, raw) == amounts(cpu="10", memory="16Gi")


# --- node reservation ----------------------------------------------------------------------------------


def test_node_reservation_by_amount_and_by_cpus() -> None:
    by_amount = NodeReservation(resources=amounts(cpu="1500m", memory="2Gi"))
    assert texts(resources.reserved_resources(by_amount)) == {"cpu": "1500m", "memory": "2Gi"}
    by_cpus = NodeReservation(resources=amounts(cpu="1500m", memory="2Gi"), reserved_cpus="0-3")
    assert texts(resources.reserved_resources(by_cpus)) == {"cpu": "4", "memory": "2Gi"}
    assert resources.reserved_resources(None) == {}


def test_without_reserved() -> None:
    allocatable = amounts(cpu="8", memory="1Gi", batch_cpu="1000", pods="110")
    reservation = NodeReservation(resources=amounts(cpu="1500m", memory="2Gi", batch_cpu="1000", gpu="1"))
    assert texts(resources.without_reserved(allocatable, reservation)) == {
        "cpu": "6500m", "memory": "0", "kubernetes.io/batch-cpu": "1k", "pods": "110",
    }  # fmt: skip
    only_cpus = NodeReservation(resources=amounts(cpu="1"), apply_policy="ReservedCPUsOnly")
    assert resources.without_reserved(allocatable, only_cpus) == allocatable
    assert resources.without_reserved(allocatable, None) == allocatable


# --- device requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "normal"),
    [
        ({}, {}),
        ({"cpu": "4", "rdma": "1"}, {}),
        ({"nvidia": "2"}, {"gpu_core": "200", "gpu_memory_ratio": "200"}),
        ({"gpu": "50"}, {"gpu_core": "50", "gpu_memory_ratio": "50"}),
        ({"gpu": "200"}, {"gpu_core": "200", "gpu_memory_ratio": "200"}),
        ({"gpu_memory": "8Gi"}, {"gpu_memory": "8Gi"}),
        ({"gpu_memory_ratio": "300"}, {"gpu_memory_ratio": "300"}),
        ({"gpu_core": "50", "gpu_memory": "8Gi"}, {"gpu_core": "50", "gpu_memory": "8Gi"}),
        ({"gpu_core": "0", "gpu_memory": "8Gi"}, {"gpu_memory": "8Gi"}),
        ({"npu_core": "4", "gpu_memory_ratio": "100"}, {"npu_core": "4", "gpu_memory_ratio": "100"}),
        ({"shared": "2", "gpu_core": "100", "gpu_memory_ratio": "100"},
         {"shared": "2", "gpu_core": "100", "gpu_memory_ratio": "100"}),
        ({"shared": "3", "gpu_memory": "9Gi"}, {"shared": "3", "gpu_memory": "9Gi"}),
        ({"shared": "1", "npu_core": "1", "npu_cpu": "1", "npu_dvpp": "100", "gpu_memory": "1Gi"},
         {"shared": "1", "npu_core": "1", "npu_cpu": "1", "npu_dvpp": "100", "gpu_memory": "1Gi"}),
    ],
    ids=str,
)  # fmt: skip
def test_gpu_requests(requested: dict[str, str], normal: dict[str, str]) -> None:
    assert gpu_request(amounts(**requested)) == amounts(**normal)


@pytest.mark.parametrize(
    "requested",
    [
        {"gpu": "150"}, {"gpu_core": "50"}, {"gpu_memory_ratio": "150"}, {"gpu": "50", "nvidia": "1"},
        {"shared": "3", "gpu_core": "100"}, {"shared": "2", "gpu_core": "99", "gpu_memory": "1Gi"},
        {"shared": "2", "gpu_core": "400", "gpu_memory_ratio": "100"}, {"shared": "1"}, {"gpu": "-100"},
        {"gpu_memory": "1Gi", "gpu_memory_ratio": "50"},
        {"shared": "2", "npu_core": "1", "npu_cpu": "1", "gpu_memory": "1Gi"},
        {"shared": "1", "npu_core": "1", "npu_cpu": "1", "npu_dvpp": "101", "gpu_memory": "1Gi"},
    ],
    ids=str,
)  # fmt: skip
def test_refused_gpu_requests(requested: dict[str, str]) -> None:
    with pytest.raises(DeviceRequestError, match=r"^invalid resource device requests: "):
        gpu_request(amounts(**requested))


@pytest.mark.parametrize(("text", "percent"), [("0", 0), ("1", 1), ("100", 100), ("300", 300)])
def test_shares(text: str, percent: int) -> None:
    assert share_request(amounts(rdma=text), "koordinator.sh/rdma") == percent
    assert share_request({}, "koordinator.sh/fpga") == 0


@pytest.mark.parametrize("text", ["150", "-1"])
def test_refused_shares(text: str) -> None:
    with pytest.raises(DeviceRequestError):
        share_request(amounts(fpga=text), "koordinator.sh/fpga")
