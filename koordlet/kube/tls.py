"""TLS contexts for API clients, from PEM in memory or files; private keys are never written to disk."""

from __future__ import annotations

import os
import ssl

from koordlet.kube.errors import ConfigError


def client_context(*, ca: bytes | None, insecure: bool) -> ssl.SSLContext:
    """A client context that trusts `ca` (PEM); None: the system's CAs."""
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ConfigError(f"certificate-authority: not a PEM certificate: {error}") from error
    # Python 3.13 sets this flag by default; some clusters' CAs lack the key usage extension that it requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_client_cert(context: ssl.SSLContext, certificate: bytes, key: bytes, where: str) -> None:
    """Use `certificate` (PEM) with `key` for new connections. OpenSSL reads only files, so a memory file is used."""
    fd = os.memfd_create("client-cert", os.MFD_CLOEXEC)
    try:
        os.write(fd, certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{where}: client certificate and key do not match: {error}") from error
    finally:
        os.close(fd)
