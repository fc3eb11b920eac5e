"""Files that describe accelerators: decoding, and errors that name the field."""

from __future__ import annotations

import pytest

from koordlet.api.deviceinfos import read_descriptions
from koordlet.api.encoding.wire import WireError

CARD = b"""[
  {
    "vendor": "huawei", "model": "Ascend-910B3", "uuid": "npu-0-0", "minor": "0",
    "resources": {"koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20",
                  "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100"},
    "topology": {"socketID": "-1", "nodeID": "0", "pcieID": "pci0000:c0", "busID": "0000:c1:00.0"},
    "status": {"healthy": true}
  }
]
"""


def test_a_card() -> None:
    (card,) = read_descriptions(CARD, where="ic-device")
    assert (card.vendor, card.model, card.uuid, card.minor) == ("huawei", "Ascend-910B3", "npu-0-0", "0")
    assert card.resources["koordinator.sh/gpu-memory"] == "65536Mi"
    assert card.topology is not None and card.status is not None
    assert (card.topology.node_id, card.topology.pcie_id, card.topology.bus_id) == ("0", "pci0000:c0", "0000:c1:00.0")
    assert (card.status.healthy, card.status.err_code) == (True, "")


@pytest.mark.parametrize("data", [b"[]", b" [] ", b"null", b'[] {"never": "read"}', b"[]\n[1"])
def test_an_empty_list_and_content_after_the_first_value(data: bytes) -> None:
    assert read_descriptions(data, where="f") == []


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{}", "f: must be an array"),
        (b"", "f: is not valid JSON"),
        (b"[", "f: is not valid JSON"),
        (b"[" * 100000, "f: is not valid JSON"),
        (b"\xff", "f: is not valid JSON"),
        (b'[{}, {"minor": 1}]', r"f: \[1\].minor: must be a string"),
        (b'[{"resources": {"a": 1}}]', r"f: \[0\].resources"),
        (b'[{"topology": {"p2pLinks": [{"peerMinor": 1}]}}]', r"f: \[0\].topology.p2pLinks\[0\].peerMinor"),
        (b'[{"status": {"healthy": "yes"}}]', r"f: \[0\].status.healthy"),
    ],
)
def test_the_invalid_field_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        read_descriptions(data, where="f")
