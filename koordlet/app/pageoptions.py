"""Flags of binaries whose pages show more than health: who may read them, and the certificate of the server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from koordlet.app.flags import FlagError, flag
from koordlet.app.http import split_address

PAGE_AUTHORIZATION = ("auto", "delegated", "none")


@dataclass
class PageOptions:
    """A base class of the options of a binary."""

    page_authorization: str = flag(
        "auto",
        "callers of pages other than health: authorized by the API server, all, or by address",
        choices=PAGE_AUTHORIZATION,
    )
    tls_cert_file: str = flag("", "certificate of the HTTPS pages; default: self-signed, generated at each start")
    tls_private_key_file: str = flag("", "private key of the certificate")
    client_ca_file: str = flag("", "CA of client certificates for the HTTPS pages")

    def authorizes(self, addr: str) -> bool:
        """Whether callers of the pages at this address are authorized."""
        if self.page_authorization == "auto":
            return not is_loopback(addr)
        return self.page_authorization == "delegated"

    def authorizes_any(self, *addresses: str) -> bool:
        """Whether `authorizes` is true of one of the addresses; empty ones are not served."""
        return any(self.authorizes(address) for address in addresses if address)

    def check_pages(self) -> None:
        """Raises FlagError."""
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            raise FlagError("--tls-cert-file and --tls-private-key-file: set both or neither")


def is_loopback(addr: str) -> bool:
    """Whether only this machine reaches `host:port`. Raises ValueError for an invalid address."""
    host, _ = split_address(addr)
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
