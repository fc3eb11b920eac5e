"""RDMA NICs from sysfs: their devices, numbers, ports and virtual functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.system.devices.rdmanics import device_names, enabled_vfs, is_active, nics, number_of, virtual_functions
from tests.koordlet.roots import roots_under
from tests.koordlet.system.rdmatree import RdmaTree


@pytest.fixture
def tree(tmp_path: Path) -> RdmaTree:
    return RdmaTree(tmp_path)


def nics_by_address(tree: RdmaTree) -> dict[str, tuple[str, int | None]]:
    return {nic.place.bus_id: (nic.device, nic.number) for nic in nics(tree.roots, device_names(tree.roots))}


def test_a_machine_without_rdma_has_no_devices(tmp_path: Path) -> None:
    assert device_names(roots_under(tmp_path)) == ()


def test_a_physical_function_has_its_first_device(tree: RdmaTree) -> None:
    tree.nic("0000:1f:00.1", "mlx5_1", node=1)
    tree.nic("0000:1f:00.0", "mlx5_0")
    tree.device("0000:1f:00.0", "mlx5_00")
    assert nics_by_address(tree) == {"0000:1f:00.0": ("mlx5_0", 0), "0000:1f:00.1": ("mlx5_1", 1)}
    first, second = nics(tree.roots, device_names(tree.roots))
    assert (first.place.node_id, first.place.pcie_id, second.place.node_id) == (0, "pci0000:1e", 1)


def test_other_devices_are_not_nics(tree: RdmaTree) -> None:
    """A virtual function, a device of another class, one without a PCI function, one that is being removed."""
    tree.nic("0000:1f:00.0", "mlx5_0")
    tree.nic("0000:1f:00.2", "mlx5_2", physfn="0000:1f:00.0")
    tree.nic("0000:20:00.0", "mlx5_3", kind="0x120000")
    (tree.roots.sys / "class/infiniband/rxe0").mkdir()
    (tree.roots.sys / "class/infiniband/mlx5_9").mkdir()
    (tree.roots.sys / "class/infiniband/mlx5_9/device").symlink_to("../../../devices/pci0000:1e/0000:1f:00.9")
    assert set(nics_by_address(tree)) == {"0000:1f:00.0"}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("mlx5_0", 0), ("mlx4_12", 12), ("mlx5_bond_0", 0), ("bnxt_re1", 1), ("irdma3", 3), ("i40iw0", 0), ("qedr7", 7),
        ("irdma10", 10), ("ocrdma11", 11), ("qedr12", 12), ("mlx5_10", 10), ("i40iw12", 12),
        ("hns_3", 3), ("efa_0", 0), ("erdma_0", 0), ("cxgb4_1", 1), ("mana_0", 0), ("vmw_pvrdma0", 0),
        ("rocep65s0f0", None), ("ibp24s0", None), ("iwp1s0", None), ("ibP1p24s0", None), ("rocex506b4b0300a1", None),
        ("foo", None), ("mlx5_", None), ("0", None), ("", None),
    ],
)  # fmt: skip
def test_the_number_in_a_name_given_by_the_driver(name: str, number: int | None) -> None:
    """Names by udev contain the place of the NIC; their numbers would all be 0."""
    assert number_of(name) == number


def test_a_nic_named_by_udev_has_the_number_of_its_verbs_device(tree: RdmaTree) -> None:
    tree.nic("0000:1f:00.0", "rocep31s0f0", verbs="uverbs4")
    tree.nic("0000:1f:00.1", "rocep31s0f1")
    tree.nic("0000:1f:00.3", "strange", verbs="uverbs5")
    assert nics_by_address(tree) == {
        "0000:1f:00.0": ("rocep31s0f0", 4),
        "0000:1f:00.1": ("rocep31s0f1", None),
        "0000:1f:00.3": ("strange", None),
    }


@pytest.mark.parametrize(
    ("states", "active"),
    [
        (["4: ACTIVE\n"], True),
        (["4: ACTIVE\n", "5: ACTIVE_DEFER\n"], True),
        (["4: ACTIVE\n", "1: DOWN\n"], False),
        (["2: INIT\n"], False),
        ([""], False),
        ([], False),
        (None, False),
    ],
)
def test_a_nic_is_healthy_when_all_its_ports_are_active(tree: RdmaTree, states: list[str] | None, active: bool) -> None:
    tree.nic("0000:1f:00.0", "mlx5_0", ports=states)
    assert is_active(tree.roots, "mlx5_0") is active


def test_virtual_functions_are_in_the_order_of_their_numbers(tree: RdmaTree) -> None:
    tree.nic("0000:1f:00.0", "mlx5_0")
    assert (enabled_vfs(tree.roots, "0000:1f:00.0"), virtual_functions(tree.roots, "0000:1f:00.0")) == (0, ())
    tree.vfs("0000:1f:00.0", [f"0000:1f:01.{n % 8}" if n < 8 else "0000:1f:02.0" for n in range(11)])
    assert enabled_vfs(tree.roots, "0000:1f:00.0") == 11
    assert virtual_functions(tree.roots, "0000:1f:00.0")[:3] == ("0000:1f:01.0", "0000:1f:01.1", "0000:1f:01.2")
    assert virtual_functions(tree.roots, "0000:1f:00.0")[10] == "0000:1f:02.0"
    assert (enabled_vfs(tree.roots, "0000:ff:00.0"), virtual_functions(tree.roots, "0000:ff:00.0")) == (0, ())
