"""TLS of a server: its certificate from files, or a self-signed one that clients cannot verify.

`ServerCertificate` reads changed files and renews a self-signed certificate; open connections keep the old one. A
removed client CA is trusted until the process ends: OpenSSL only adds authorities to a context.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from koordlet.app.logging import get_logger

log = get_logger(__name__)

TLS_VERSIONS: Final = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
RELOAD_PERIOD_S: Final = 10.0
RENEWAL_S: Final = 30 * 86400.0
"""Age at which a self-signed certificate is replaced; it is valid for a year."""
CHILD_TIMEOUT_S: Final = 60.0
"""For the child process that makes one."""


class ServerCertificate:
    """`context` is for the server; call `reload` periodically."""

    def __init__(
        self,
        cert: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
        minimum: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises OSError, ssl.SSLError for unusable files, ValueError for an unknown minimum version."""
        self.context = server_context(cert, key, client_ca, minimum)
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._now = now
        self._made = now()
        self._version = self._versions()

    def reload(self) -> None:
        """Use changed files, or a new self-signed certificate when the current one is old. While the files do not
        match, as between the writes of two files, the old certificate stays in use. Raises OSError, ssl.SSLError."""
        if self._cert is None and self._now() - self._made >= RENEWAL_S:
            _load(self.context, _own_certificate())
            self._made = self._now()
        version = self._versions()
        if version == self._version:
            return
        server_context(self._cert, self._key, self._client_ca)  # a mismatch would leave the context without a key
        if self._cert is not None:
            self.context.load_cert_chain(self._cert, self._key)
        if self._client_ca is not None:
            self.context.load_verify_locations(self._client_ca)
        self._version = version
        log.info("Loaded the server's certificate", file=str(self._cert or self._client_ca))

    def _versions(self) -> list[tuple[int, int, int]]:
        """Identity of the files' content. Raises OSError."""
        stats = [path.stat() for path in (self._cert, self._key, self._client_ca) if path is not None]
        return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]


def server_context(
    cert: Path | None = None, key: Path | None = None, client_ca: Path | None = None, minimum: str = ""
) -> ssl.SSLContext:
    """The TLS context of a server; without `cert` it uses a self-signed certificate, which clients cannot verify.

    Raises OSError, ssl.SSLError for unusable files, ValueError for an unknown minimum version.
    """
    if minimum not in TLS_VERSIONS:
        raise ValueError(f"unknown TLS version {minimum!r}: want {' or '.join(filter(None, TLS_VERSIONS))}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = TLS_VERSIONS[minimum]
    if cert is not None:
        context.load_cert_chain(cert, key)
    else:
        _load(context, _own_certificate())
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _own_names() -> tuple[str, ...]:
    return (socket.gethostname(), "localhost", "127.0.0.1")


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a key and certificate from memory: the `ssl` module accepts only file names."""
    descriptor = os.memfd_create("self-signed")
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _own_certificate() -> bytes:
    """A self-signed certificate, made by a child process: the library for it takes 9 MB of memory, which this process
    would need once a month. Raises OSError."""
    command = [sys.executable, "-m", "koordlet.app.selfsigned", *_own_names()]
    path = os.pathsep.join(directory or str(Path.cwd()) for directory in sys.path)
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=CHILD_TIMEOUT_S, check=True
        )
    except subprocess.SubprocessError as error:
        cause = getattr(error, "stderr", None) or b""
        raise OSError(f"cannot make a certificate: {error}: {cause.decode(errors='replace')[-500:]}") from error
    return done.stdout
