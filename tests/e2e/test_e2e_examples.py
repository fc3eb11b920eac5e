"""The API server and the webhooks accept every object that the documentation shows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Cluster
from tests.repository.examples import blocks, documents

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl, pytest.mark.runtime]
IS_REAL = "KUBECONFIG" in os.environ
"""Whether the cluster is a real Kubernetes: the embedded API server does not serve resource claims."""
OBJECTS = [
    (str(block), document)
    for block in blocks()
    for document in documents(block)
    if document["kind"] != "Kustomization"  # a file of kubectl, not an object
    and (IS_REAL or not document["apiVersion"].startswith("resource.k8s.io/"))
]
NAMESPACES = sorted(
    {namespace for _, document in OBJECTS if (namespace := document["metadata"].get("namespace"))}
    - {"koordinator-system"}
)


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster) -> Iterator[None]:
    for namespace in NAMESPACES:
        cluster.run("create", "namespace", namespace)
    yield
    cluster.run("delete", "namespace", "--wait=false", *NAMESPACES)


@pytest.mark.parametrize(("place", "document"), OBJECTS, ids=[f"{at}-{item['kind']}" for at, item in OBJECTS])
def test_an_object_of_the_documentation_is_accepted(
    cluster: Cluster, namespaces: None, place: str, document: dict[str, Any]
) -> None:
    namespace = document["metadata"].get("namespace", cluster.namespace)
    done = cluster.run(
        "apply", "--namespace", namespace, "--dry-run=server", "--validate=strict", "-f", "-", text=json.dumps(document)
    )
    assert "(server dry run)" in done.stdout, place
