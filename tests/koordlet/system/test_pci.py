"""PCI functions: addresses in any form, and sysfs with all, some or no files."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.system.devices.pci import PciAddressError, PciFunction, PciPlace, bound_to, canonical, functions, place
from koordlet.system.errors import UnreadableFile
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under


def function(base: Path, address: str, below: str, numa_node: str | None = "0\n") -> Path:
    """A function's directory below a bridge path, and the link to it by address."""
    real = base / "sys/devices" / below / address
    real.mkdir(parents=True)
    if numa_node is not None:
        (real / "numa_node").write_text(numa_node)
    link = base / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)
    return real


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0000:01:00.0", "0000:01:00.0"),
        ("0000:C1:00.1", "0000:c1:00.1"),
        ("00000000:9A:00.0", "0000:9a:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        (" 0000:01:00.0\n", "0000:01:00.0"),
    ],
)
def test_addresses_are_in_the_form_of_sysfs(written: str, read: str) -> None:
    assert canonical(written) == read


@pytest.mark.parametrize("text", ["", "01:00.0", "0000:01:00", "0000:01:00.8", "0000:01:00.0/..", "../../x", "gpu0"])
def test_other_texts_are_errors(text: str) -> None:
    with pytest.raises(PciAddressError, match="is not a PCI address"):
        canonical(text)
    with pytest.raises(PciAddressError, match="is not a PCI address"):
        place(Roots.host(), text)


@pytest.mark.parametrize(
    ("below", "numa_node", "expected"),
    [
        ("pci0000:00/0000:00:02.0", "0\n", PciPlace("0000:01:00.0", 0, "pci0000:00")),
        ("pci0000:9a/0000:9a:01.0/0000:9b:00.0", "1\n", PciPlace("0000:01:00.0", 1, "pci0000:9a")),
        ("pci0000:00", "-1\n", PciPlace("0000:01:00.0", 0, "pci0000:00")),
        ("pci0000:00", "", PciPlace("0000:01:00.0", 0, "pci0000:00")),
        ("pci0000:00", "one\n", PciPlace("0000:01:00.0", 0, "pci0000:00")),
        ("pci0000:00", None, PciPlace("0000:01:00.0", 0, "pci0000:00")),
        ("platform/soc", "1\n", PciPlace("0000:01:00.0", 1, "")),
    ],
    ids=["spec", "behind-bridges", "no-node", "empty", "malformed", "no-file", "no-root-complex"],
)
def test_the_place_of_a_function(tmp_path: Path, below: str, numa_node: str | None, expected: PciPlace) -> None:
    function(tmp_path, "0000:01:00.0", below, numa_node)
    assert place(roots_under(tmp_path), "00000000:01:00.0") == expected


def test_an_unknown_function_has_its_address(tmp_path: Path) -> None:
    assert place(roots_under(tmp_path), "0000:AB:00.0") == PciPlace("0000:ab:00.0")


def test_the_functions_of_a_driver_are_listed(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    assert bound_to(roots, "nvidia") == ()
    driver = tmp_path / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    for name in ("0000:C1:00.0", "0000:02:00.0", "bind", "module", "new_id"):
        (driver / name).touch()
    assert bound_to(roots, "nvidia") == ("0000:02:00.0", "0000:c1:00.0")


def test_functions_have_vendor_and_product(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    assert functions(roots) == ()
    for address, vendor, product in (("0000:c1:00.0", "0x19e5\n", "0xD802\n"), ("0000:02:00.0", "10de", None)):
        directory = tmp_path / "sys/bus/pci/devices" / address
        directory.mkdir(parents=True)
        (directory / "vendor").write_text(vendor)
        if product is not None:
            (directory / "device").write_text(product)
    assert functions(roots) == (PciFunction("0000:02:00.0", "10de", ""), PciFunction("0000:c1:00.0", "19e5", "d802"))
    (tmp_path / "other/sys/bus/pci").mkdir(parents=True)
    (tmp_path / "other/sys/bus/pci/devices").touch()
    with pytest.raises(UnreadableFile, match="bus/pci/devices"):
        functions(roots_under(tmp_path / "other"))
