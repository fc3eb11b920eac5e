"""`koordctl reservation` shows what Reservations offer, what is used and what remains."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from control.ctl.errors import CtlError
from control.ctl.main import cli
from control.ctl.views.reservations import details, expires, fetch_reservations, reservation_table
from control.standalone.apiserver import ApiServer
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import crdgen
from koordlet.api.meta import ObjectReference
from koordlet.kube import Client, ClientConfig, PatchKind
from tests.control.reservation.reservationbuild import reservation

CREATED = 1_767_225_600  # 2026-01-01


def drawn(*reservations: Reservation, now: float = CREATED + 600) -> list[str]:
    console = Console(file=StringIO(), width=250)
    console.print(reservation_table(reservations, now))
    assert isinstance(console.file, StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def consumed(**more: Any) -> Reservation:
    half_used = reservation("half", cpu=8, memory="16Gi", node="n1", **more)
    half_used.status.allocated = {"cpu": half_used.status.allocatable["cpu"]}
    return half_used


def test_the_table() -> None:
    inner = {"node.koordinator.sh/reservation": json.dumps({"resources": {"memory": "1Gi"}})}
    assert drawn(consumed(annotations=inner), reservation("new", ttl="0s"), reservation("old", phase="Failed")) == [
        "RESERVATION NODE PHASE RESOURCE ALLOCATABLE ALLOCATED REMAINING OWNERS AGE EXPIRES",
        "half n1 Available cpu 8 8 0 0 10m 23h",
        "memory 16Gi 0 15Gi",
        "new - Pending cpu 8 0 - 0 10m never",
        "old - Failed cpu 8 0 - 0 10m -",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "24h"), (24 * 3600 - 5, "5s"), (24 * 3600, "now"), (99 * 3600, "now")]
)
def test_when_it_expires(seconds: int, shown: str) -> None:
    assert expires(reservation("r"), CREATED + seconds) == shown


def test_details() -> None:
    selector = {"matchExpressions": [{"key": "a", "operator": "x"}]}
    owned = reservation("r", node="n1", owners=[{"labelSelector": selector}], allocatePolicy="Restricted")
    owned.status.current_owners = [ObjectReference(namespace="default", name=f"p{at}", uid=str(at)) for at in range(52)]
    lines = list(details(owned, CREATED))
    assert lines[1] == "Policy Restricted, for one pod"
    assert lines[2].startswith("Invalid: spec.owners[0].labelSelector")
    assert lines[3] == "Owner default/p0"
    assert lines[-1] == "and 2 more owners"


async def test_from_the_api_server(tmp_path: Path) -> None:
    async with (
        ApiServer(tmp_path / "api") as server,
        Client(ClientConfig.load(server.kubeconfig_path, qps=0)) as admin,
    ):
        path = str(server.kubeconfig_path)
        with pytest.raises(CtlError, match="the cluster has no Reservations"):
            await fetch_reservations(path)
        for crd in crdgen.documents().values():
            name = crd["metadata"]["name"]
            await admin.raw(
                "PATCH", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}",
                params={"fieldManager": "tests"}, body=crd, content_type=PatchKind.APPLY.value,
            )  # fmt: skip
        assert await fetch_reservations(path) == []
        for name in ("b", "a"):
            created = reservation(name, owners=[{"object": {"name": "p"}}])
            created.metadata.resource_version = created.metadata.uid = ""
            await admin.create(created)
        assert [reservation.metadata.name for reservation in await fetch_reservations(path)] == ["a", "b"]
        assert [reservation.metadata.name for reservation in await fetch_reservations(path, "b")] == ["b"]
        with pytest.raises(CtlError, match="there is no Reservation c"):
            await fetch_reservations(path, "c")


def test_the_command_names_the_problem(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{}")
    done = CliRunner().invoke(cli, ["reservation", f"--kubeconfig={config}", f"--state-dir={tmp_path}"])
    assert done.exit_code == 1
