"""The page of `koordctl node`: headline, table, formulas; and the command with an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.ctl.errors import CtlError
from control.ctl.main import cli
from control.ctl.views.overcommit import fetch_node, overcommit_of, page
from control.standalone.apiserver import ApiServer
from koordlet.api import names
from koordlet.api.core import Node, NodeStatus
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ObjectMeta
from koordlet.api.pages.overcommit import (
    AS_MEASURED,
    INTERFERENCE,
    OVERCOMMIT,
    STALE,
    BatchTerms,
    Hold,
    MidTerms,
    OvercommitExplanation,
)
from koordlet.kube import Client, ClientConfig

NOW = 1_000_000.0
GI = 2**30
CPU = BatchTerms(
    policy="usage", capacity=100_000, margin=35_000, reserved=1000, measured_system=7000, system=7000,
    high_request=40_000, high_used=33_000, high=33_000, calculated=25_000, lent=25_000,
)  # fmt: skip
MEMORY = BatchTerms(
    policy="request", capacity=100 * GI, margin=-20 * GI, reserved=0, measured_system=7 * GI, system=0,
    high_request=40 * GI, high_used=33 * GI, high=40 * GI, calculated=80 * GI, lent=80 * GI,
)  # fmt: skip
MID = MidTerms(reclaimable=10_000, unused=50_000, unallocated=40_000, share=4000, limit=100_000, lent=14_000)


def make(explanation: OvercommitExplanation | None, **extended: str) -> Node:
    amounts = {"cpu": Quantity("100"), "memory": Quantity("100Gi")}
    more = {f"kubernetes.io/{name.replace('_', '-')}": Quantity(text) for name, text in extended.items()}
    annotations = {names.ANNOTATION_OVERCOMMIT: OVERCOMMIT.text(explanation)} if explanation is not None else {}
    return Node(
        metadata=ObjectMeta(name="n1", annotations=annotations),
        status=NodeStatus(capacity=amounts, allocatable={**amounts, **more}),
    )


def lines(explanation: OvercommitExplanation | None, **extended: str) -> list[str]:
    return [line.plain for line in page(overcommit_of(make(explanation, **extended)), NOW)]


def measured(**changes: Any) -> OvercommitExplanation:
    fields = {"reason": AS_MEASURED, "at": Time.from_unix(NOW - 5), "reported": Time.from_unix(NOW - 90)}
    return OvercommitExplanation(**{**fields, "batch": {"cpu": CPU, "memory": MEMORY}, "mid": {"cpu": MID}, **changes})


def test_the_formulas_have_their_numbers_in() -> None:
    text = lines(measured(), batch_cpu="25000", batch_memory="80Gi", mid_cpu="14000")
    assert text[:3] == [
        "node n1",
        "Overcommits all measured free capacity.",
        "written 5s ago, from a report made 90s ago",
    ]
    assert "  batch-cpu  100 capacity - 35 kept free - 7 system - 33 prod and mid (by usage) = 25" in text
    assert (
        "  batch-memory  100Gi capacity + 20Gi over capacity - 0 reserved - 40Gi prod and mid (by request) = 80Gi"
        in text
    )
    mid = next(line for line in text if line.startswith("  mid-cpu"))
    assert "smaller of 10 predicted to stay unused and 50 unused + 4 of 40 unallocated" in mid
    assert mid.endswith("= 14")
    rows = {line[:32].strip(): line[32:].split() for line in text if line[:1].isalpha()}
    assert rows["overcommitted to batch pods"][:3] == ["25", "25", "%"]
    assert rows["requested by prod and mid pods"][0] == "40"
    assert rows["kept free"][0] == "35"


def test_each_step_after_the_formula_is_shown() -> None:
    terms = {"percent": 80, "normalization": 1.2, "third_party": 4000, "limit": 90_000, "lent": 20_000}
    held = Hold(percent=80, because="2 containers held up by neighbours")
    changed = BatchTerms(**{**{f: getattr(CPU, f) for f in CPU.__struct_fields__}, **terms})
    text = lines(measured(reason=INTERFERENCE, batch={"cpu": changed}, hold={"cpu": held}), batch_cpu="20000")
    assert text[1] == "Overcommits only 80 % of its cpu (2 containers held up by neighbours)."
    assert any(line.endswith("= 25, at most 90") for line in text)
    after = next(line for line in text if "third parties" in line)
    assert after.strip() == (
        "x 80 % (2 containers held up by neighbours) x 1.20 CPU normalization - 4 given to third parties = 20"
    )


def test_a_node_without_overcommit_shows_the_reason() -> None:
    text = lines(OvercommitExplanation(reason=STALE, message="the last report is more than 15 minutes old"))
    assert text[1] == "Overcommits nothing: the last report is more than 15 minutes old."
    assert not any("batch-cpu" in line for line in text)
    assert any(line.split() == ["overcommitted", "to", "batch", "pods", "-", "-"] for line in text)


def test_a_node_that_no_manager_wrote_to() -> None:
    assert lines(None)[1].startswith("No manager has written to it")


def test_an_invalid_annotation_is_named() -> None:
    node = make(None)
    node.metadata.annotations[names.ANNOTATION_OVERCOMMIT] = "{"
    with pytest.raises(CtlError, match=names.ANNOTATION_OVERCOMMIT):
        overcommit_of(node)


async def test_the_node_is_fetched(tmp_path: Path) -> None:
    async with ApiServer(tmp_path / "data") as server:
        path = str(server.kubeconfig_path)
        async with Client(ClientConfig.load(path)) as client:
            await client.create(make(measured()))
        assert overcommit_of(await fetch_node(path, "n1")).lending == measured()
        with pytest.raises(CtlError, match="there is no Node n2"):
            await fetch_node(path, "n2")
    with pytest.raises(CtlError, match="cannot get Node n1"):
        await fetch_node(path, "n1")


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def node_page(_: str | None, name: str, context: str | None) -> Node:
        assert name == "n1"
        return make(measured(), batch_cpu="25000")

    monkeypatch.setattr("control.ctl.main.fetch_node", node_page)
    shown = CliRunner().invoke(cli, ["node", "n1", "-o", "json", "--state-dir", str(tmp_path)], catch_exceptions=False)
    document = json.loads(shown.output)
    assert document["batch"] == {"cpu": 25000}
    assert document["lending"]["batch"]["cpu"]["highUsed"] == 33_000
    shown = CliRunner().invoke(cli, ["node", "n1", "--state-dir", str(tmp_path)], catch_exceptions=False)
    assert "Overcommits all measured free capacity." in shown.output
