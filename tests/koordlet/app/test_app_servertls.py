"""A server's certificate: changed files, files that do not match, and the renewal of a self-signed one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordlet.app.selfsigned import self_signed
from koordlet.app.servertls import RENEWAL_S, ServerCertificate
from tests.certificates import KEY_END, self_signed_files, write_pair


@contextlib.asynccontextmanager
async def serving(certificate: ServerCertificate) -> AsyncIterator[int]:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def shown(port: int) -> bytes:
    """The certificate of a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    data: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return data


async def test_changed_files_are_used_when_they_match(tmp_path: Path) -> None:
    certificate = ServerCertificate(*self_signed_files(tmp_path, "a"))
    async with serving(certificate) as port:
        first = await shown(port)
        certificate.reload()
        assert await shown(port) == first
        pem = self_signed(("b",))
        (tmp_path / "tls.crt").write_bytes(pem.partition(KEY_END)[2])  # the key follows later
        with pytest.raises(ssl.SSLError):
            certificate.reload()
        assert await shown(port) == first, "the old pair stays in use"
        write_pair(tmp_path, pem)
        certificate.reload()
        assert await shown(port) == ssl.PEM_cert_to_DER_cert(pem.partition(KEY_END)[2].decode())


async def test_a_self_signed_certificate_is_renewed_before_it_expires() -> None:
    now = [0.0]
    certificate = ServerCertificate(now=lambda: now[0])
    async with serving(certificate) as port:
        first = await shown(port)
        now[0] = RENEWAL_S - 1
        certificate.reload()
        assert await shown(port) == first
        now[0] = RENEWAL_S
        certificate.reload()
        assert await shown(port) != first


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ServerCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
