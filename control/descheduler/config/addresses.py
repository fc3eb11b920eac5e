"""Bind addresses of the configuration file (spec 07 §2.1). Pure."""

from __future__ import annotations

import ipaddress
import re
import socket

from control.descheduler.config.model import DEFAULT_PORT

_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")


def completed_address(text: str) -> str:
    """`host:port` of an address: a bare IP gets the default port, `:port` the host 0.0.0.0. Raises ValueError."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        pass  # no bare IP: host:port
    else:
        return f"[{text}]:{DEFAULT_PORT}" if address.version == 6 else f"{text}:{DEFAULT_PORT}"
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be host:port with a port of 0 to 65535")
    host = host or "0.0.0.0"
    if host.startswith("[") and host.endswith("]"):
        ipaddress.ip_address(host[1:-1])
    elif not _HOST.fullmatch(host):
        raise ValueError(f'"{host}" is not a host name or an IP address')
    return f"{host}:{port}"


def hosts_and_ports(text: str) -> tuple[str, int]:
    """(host without brackets, port) of a completed address."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def is_local(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or socket.gethostbyname(host).startswith("127.")
