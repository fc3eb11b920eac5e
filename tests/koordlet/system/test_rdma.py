"""RDMA device nodes are found by PCI address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordlet.system.devices.rdma import CONNECTION_MANAGER, DeviceNode, RDMAError, verbs_device
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under

ADDRESS = "0000:01:00.0"


@pytest.fixture
def host(tmp_path: Path) -> Roots:
    """One function with two verbs devices; the nodes are links to /dev/null."""
    verbs = tmp_path / f"sys/bus/pci/devices/{ADDRESS}/infiniband_verbs"
    for name in ("uverbs1", "uverbs0"):
        (verbs / name).mkdir(parents=True)
    dev = tmp_path / "dev"
    (dev / "infiniband").mkdir(parents=True)
    for name in ("rdma_cm", "uverbs0"):
        (dev / "infiniband" / name).symlink_to("/dev/null")
    return roots_under(tmp_path)


def test_the_first_verbs_device_and_the_connection_manager_are_found(host: Roots) -> None:
    null, mode = Path("/dev/null").stat().st_rdev, Path("/dev/null").stat().st_mode & 0o7777
    node = verbs_device(host, ADDRESS)
    assert node == DeviceNode("/dev/infiniband/uverbs0", os.major(null), os.minor(null), mode)
    assert verbs_device(host, CONNECTION_MANAGER).path == "/dev/infiniband/rdma_cm"


def test_a_missing_device_is_named(host: Roots, tmp_path: Path) -> None:
    with pytest.raises(RDMAError, match=r"0000:09:00\.0"):
        verbs_device(host, "0000:09:00.0")
    with pytest.raises(RDMAError, match=r"'\.\./\.\.' is not a PCI address"):
        verbs_device(host, "../..")
    empty = tmp_path / "sys/bus/pci/devices/0000:02:00.0/infiniband_verbs"
    empty.mkdir(parents=True)
    with pytest.raises(RDMAError, match="is empty"):
        verbs_device(host, "0000:02:00.0")
    (host.dev / "infiniband/uverbs0").unlink()
    (host.dev / "infiniband/uverbs0").touch()
    with pytest.raises(RDMAError, match="not a character device"):
        verbs_device(host, ADDRESS)
