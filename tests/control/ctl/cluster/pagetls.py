"""A self-signed certificate, as a component makes one at its start."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.certificates import self_signed_files


def page_tls(folder: Path) -> ssl.SSLContext:
    """The TLS context of a server whose certificate no client can verify."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*self_signed_files(folder, "self"))
    return context
