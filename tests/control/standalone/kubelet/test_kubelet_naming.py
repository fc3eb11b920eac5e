"""Directory names, compared with spec 03 §1.2 and with koordlet's parser."""

from __future__ import annotations

import pytest

from control.standalone.kubelet.cgroups.naming import CgroupNames, Driver, QosClass
from koordlet.system.cgroup import naming as reader
from tests.koordlet.cgroupdirs import container_dir

UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
ID = "ab" * 32
U = UID.replace("-", "_")

TABLE = [
    (Driver.CGROUPFS, QosClass.GUARANTEED, f"kubepods/pod{UID}", ID),
    (Driver.CGROUPFS, QosClass.BURSTABLE, f"kubepods/burstable/pod{UID}", ID),
    (Driver.CGROUPFS, QosClass.BESTEFFORT, f"kubepods/besteffort/pod{UID}", ID),
    (Driver.SYSTEMD, QosClass.GUARANTEED, f"kubepods.slice/kubepods-pod{U}.slice", f"cri-containerd-{ID}.scope"),
    (
        Driver.SYSTEMD,
        QosClass.BURSTABLE,
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U}.slice",
        f"cri-containerd-{ID}.scope",
    ),
    (
        Driver.SYSTEMD,
        QosClass.BESTEFFORT,
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U}.slice",
        f"cri-containerd-{ID}.scope",
    ),
]
IDS = [f"{driver}-{qos}" for driver, qos, _, _ in TABLE]


@pytest.mark.parametrize(("driver", "qos", "pod", "leaf"), TABLE, ids=IDS)
def test_layout(driver: Driver, qos: QosClass, pod: str, leaf: str) -> None:
    names = CgroupNames(driver)
    assert names.pod(qos, UID) == pod
    assert names.container(qos, UID, ID) == f"{pod}/{leaf}"
    assert CgroupNames(driver, "test").pod(qos, UID) == f"test/{pod}"


@pytest.mark.parametrize(("driver", "qos", "pod", "leaf"), TABLE, ids=IDS)
def test_koordlet_reads_the_directories_that_the_kubelet_writes(
    driver: Driver, qos: QosClass, pod: str, leaf: str
) -> None:
    as_read, kube_qos = reader.CgroupDriver(driver.value), reader.KubeQOS(qos.value)
    assert reader.pod_dir(as_read, kube_qos, UID) == pod
    assert container_dir(as_read, kube_qos, UID, f"containerd://{ID}") == f"{pod}/{leaf}"
    assert reader.sandbox_id(as_read, [leaf], []) is None
    other = CgroupNames(driver).container(qos, UID, "cd" * 32).rpartition("/")[2]
    sandbox_id = reader.sandbox_id(as_read, [leaf, other], [f"containerd://{ID}"])
    assert sandbox_id is not None
    assert sandbox_id.hash == "cd" * 32
