"""A serving certificate for the fake kubelet; an API server with the objects that koordlet writes."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from control.standalone.apiserver import ApiServer
from koordlet.api.crs.device import Device
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding import crdgen
from koordlet.kube import Client, ClientConfig, NotFound


@pytest.fixture(scope="session")
def serving_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) files, self-signed as a kubelet's are."""
    directory = tmp_path_factory.mktemp("kubelet-tls")
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubelet")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / "tls.crt").write_bytes(certificate.public_bytes(pem))
    (directory / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return directory / "tls.crt", directory / "tls.key"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """An administrator's, once the reported kinds are served."""
    kinds = {"NodeResourceTopology": NodeResourceTopology, "Device": Device}
    async with Client(ClientConfig.load(str(server.kubeconfig_path))) as made:
        for crd in crdgen.documents().values():
            if crd["spec"]["names"]["kind"] in kinds:
                await made.raw("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=crd)

        async def served(kind: type) -> bool:
            try:
                await made.list(kind)
            except NotFound:
                return False
            return True

        async with asyncio.timeout(120):
            for kind in kinds.values():
                while not await served(kind):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        yield made
