"""What tests of reporters share: waiting for what happens in a server, outcomes as they are counted, stock kubectl."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from control.standalone.apiserver import ApiServer
from koordlet.kube import ObjectInformer
from koordlet.prometheus import Registries
from tests.waiting import until


async def until_stored(copy: ObjectInformer[Any], version: str) -> None:
    """Wait until a reporter's copy is this version."""
    await until(lambda: copy.object is not None and copy.object.metadata.resource_version == version)


def outcomes(registries: Registries, family: str) -> dict[str, float]:
    """Rounds by how they ended."""
    families = [f for f in registries.internal.collect() if f.name == f"koordlet_{family}"]
    return {sample.labels["status"]: sample.value for f in families for sample in f.samples}


async def kubectl(server: ApiServer, *arguments: str) -> str:
    """What stock kubectl prints."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("kubectl")), f"--kubeconfig={server.kubeconfig_path}", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode()


def slices_crd() -> dict[str, Any]:
    """The embedded API server has ResourceSlices only as custom resources."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "selectableFields": [{"jsonPath": ".spec.nodeName"}, {"jsonPath": ".spec.driver"}],
    }
    spec = {
        "group": "resource.k8s.io",
        "names": {"kind": "ResourceSlice", "plural": "resourceslices"},
        "scope": "Cluster",
        "versions": [version],
    }
    approved = {"api-approved.kubernetes.io": "unapproved, for tests"}
    meta = {"name": "resourceslices.resource.k8s.io", "annotations": approved}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": meta,
        "spec": spec,
    }
