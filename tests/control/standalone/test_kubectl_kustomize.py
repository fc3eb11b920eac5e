"""kubectl apply -k of a CRD and its objects, and kubectl's output for custom kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.kubectl

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodemetrics.demo.example.com"},
    "spec": {
        "group": "demo.example.com",
        "scope": "Cluster",
        "names": {"plural": "nodemetrics", "kind": "NodeMetric", "shortNames": ["nm"], "categories": ["demo"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "CPU", "type": "string", "jsonPath": ".status.cpu"},
                    {"name": "Memory", "type": "string", "jsonPath": ".status.memory", "priority": 1},
                ],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "What a node measured.",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "period": {
                                        "type": "integer",
                                        "description": "Seconds between reports.",
                                        "minimum": 1,
                                    }
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {"cpu": {"type": "string"}, "memory": {"type": "string"}},
                            },
                        },
                    }
                },
            }
        ],
    },
}
METRIC = {
    "apiVersion": "demo.example.com/v1",
    "kind": "NodeMetric",
    "metadata": {"name": "n1"},
    "spec": {"period": 60},
}


@pytest.fixture
async def applied(kubectl: Any, tmp_path: Path) -> Any:
    base = tmp_path / "base"
    base.mkdir()
    (base / "crd.yaml").write_text(yaml.safe_dump(CRD))
    (base / "kustomization.yaml").write_text("resources: [crd.yaml]\nlabels: [{pairs: {part-of: demo}}]\n")
    assert "created" in await kubectl("apply", "-k", str(base))
    await kubectl("wait", "--for=condition=Established", "crd/nodemetrics.demo.example.com", "--timeout=90s")
    kubectl.base = base
    return kubectl


async def test_kubectl_handles_custom_kinds(applied: Any) -> None:
    overlay = applied.base.parent / "overlay"
    overlay.mkdir()
    (overlay / "metric.yaml").write_text(yaml.safe_dump(METRIC))
    (overlay / "kustomization.yaml").write_text("resources: [../base, metric.yaml]\nnamePrefix: ''\n")
    out = await applied("apply", "-k", str(overlay))
    assert "nodemetric.demo.example.com/n1 created" in out
    assert "unchanged" in await applied("apply", "-k", str(overlay))
    status = '{"status":{"cpu":"2","memory":"4Gi"}}'
    await applied("patch", "nm", "n1", "--subresource=status", "--type=merge", "-p", status)
    assert (await applied("get", "nodemetric")).split() == ["NAME", "CPU", "n1", "2"]
    assert (await applied("get", "nm", "-o", "wide")).split() == ["NAME", "CPU", "MEMORY", "n1", "2", "4Gi"]
    assert "n1" in await applied("get", "demo")
    explained = await applied("explain", "nodemetric.spec.period")
    assert "Seconds between reports." in explained
    assert "Name:         n1" in await applied("describe", "nm", "n1")
    refused = await applied("patch", "nm", "n1", "--type=merge", "-p", '{"spec":{"period":0}}', fails=True)
    assert 'The NodeMetric "n1" is invalid' in refused
    assert "spec.period: Invalid value: 0" in refused
    bad = yaml.safe_dump({**METRIC, "spec": {"periods": 5}})
    assert 'unknown field "spec.periods"' in await applied("apply", "-f", "-", input=bad, fails=True)
    await applied("delete", "-k", str(overlay), "--ignore-not-found", "--timeout=90s")
    assert "could not find the requested resource" in await applied("get", "nodemetric", fails=True)


async def test_server_side_apply_and_edit_of_custom_objects(applied: Any) -> None:
    await applied("apply", "--server-side", "-f", "-", input=yaml.safe_dump(METRIC))
    editor = applied.home / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i 's/period: 60/period: 90/' \"$1\"\n")
    editor.chmod(0o755)
    assert "edited" in await applied("edit", "nm", "n1", env={"EDITOR": str(editor)})
    assert await applied("get", "nm", "n1", "-o", "jsonpath={.spec.period}:{.metadata.generation}") == "90:2"
    conflict = await applied("apply", "--server-side", "-f", "-", input=yaml.safe_dump(METRIC), fails=True)
    assert ".spec.period" in conflict
