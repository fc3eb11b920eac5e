"""A serving certificate for the fake kubelet; an API server with the objects that koordlet writes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control.standalone.apiserver import ApiServer
from koordlet.api.crs.device import Device
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding import crdgen
from koordlet.kube import Client, ClientConfig, NotFound
from tests.certificates import self_signed_files


@pytest.fixture(scope="session")
def serving_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) files, self-signed as a kubelet's are."""
    return self_signed_files(tmp_path_factory.mktemp("kubelet-tls"), "kubelet")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """An administrator's, once the reported kinds are served."""
    kinds = {"NodeResourceTopology": NodeResourceTopology, "Device": Device}
    async with Client(ClientConfig.load(str(server.kubeconfig_path))) as api_client:
        for crd in crdgen.documents().values():
            if crd["spec"]["names"]["kind"] in kinds:
                await api_client.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=crd)

        async def served(kind: type) -> bool:
            try:
                await api_client.list(kind)
            except NotFound:
                return False
            return True

        async with asyncio.timeout(120):
            for kind in kinds.values():
                while not await served(kind):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        yield api_client
