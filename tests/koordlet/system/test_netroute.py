"""The interface of the default route."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.system.errors import MalformedFile
from koordlet.system.network.netroute import default_interface
from tests.koordlet.roots import roots_under

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def row(
    interface: str, destination: str = "00000000", flags: str = "0003", metric: int = 0, mask: str = "00000000"
) -> str:
    return f"{interface}\t{destination}\t0102A8C0\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([], None, id="no route"),
        pytest.param([row("eth0")], "eth0", id="one route"),
        pytest.param([row("eth0", "0002A8C0", mask="00FFFFFF")], None, id="only local routes"),
        pytest.param([row("eth0", metric=100), row("wlan0", metric=50)], "wlan0", id="lowest metric"),
        pytest.param([row("eth0", metric=100), row("down0", flags="0002")], "eth0", id="one route is up"),
    ],
)
def test_the_default_route_has_the_lowest_metric(tmp_path: Path, rows: list[str], expected: str | None) -> None:
    roots = roots_under(tmp_path)
    (roots.proc / "net").mkdir(parents=True)
    (roots.proc / "net/route").write_text(HEAD + "".join(rows))
    assert default_interface(roots) == expected


def test_a_missing_file_is_none_and_a_malformed_one_is_named(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    assert default_interface(roots) is None
    (roots.proc / "net").mkdir(parents=True)
    (roots.proc / "net/route").write_text(HEAD + "eth0\t0000\n")
    with pytest.raises(MalformedFile, match="net/route"):
        default_interface(roots)
