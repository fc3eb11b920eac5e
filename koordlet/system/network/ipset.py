"""IPv4 address sets of the kernel (`hash:ip`), through nfnetlink (include/uapi/linux/netfilter/ipset/ip_set.h)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address

from koordlet.system.network.netlink import (
    ACK,
    CREATE,
    DUMP,
    EXCLUSIVE,
    Netlink,
    NetlinkError,
    attribute,
    attributes,
    nested,
    text,
)

TYPE = "hash:ip"
_SUBSYSTEM, _INET, _PROTOCOL = 6 << 8, 2, 6
_CREATE, _DESTROY, _LIST, _ADD, _DELETE, _TYPE_OF = 2, 3, 7, 9, 10, 13
_A_PROTOCOL, _A_NAME, _A_TYPE, _A_REVISION, _A_FAMILY, _A_DATA, _A_ADT, _A_LINE = 1, 2, 3, 4, 5, 7, 8, 9
_D_IP, _IPV4 = 1, 1
_BIG_ENDIAN = 0x4000
_ERRORS = {4097: "protocol", 4098: "no such type", 4100: "in use", 4103: "exists already"}
_EXIST = 4103


class IPSets:
    """The sets of one network namespace."""

    def __init__(self, link: Netlink) -> None:
        self._link = link

    def probe(self) -> str:
        """Why the kernel has no sets of this type; empty when it has."""
        try:
            self._request(_TYPE_OF, 0, text(_A_TYPE, TYPE), attribute(_A_FAMILY, bytes([_INET])))
        except NetlinkError as error:
            return f"no IP sets of type {TYPE}: {error.strerror}"
        return ""

    def members(self, name: str) -> set[str] | None:
        """Addresses of a set; None when no set has that name. Raises NetlinkError."""
        addresses: set[str] = set()
        try:
            answers = self._request(_LIST, DUMP & ~ACK, text(_A_NAME, name))
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        for _, body in answers:
            for kind, content in attributes(body, 4):
                if kind == _A_ADT:
                    addresses.update(_address(entry) for _, entry in attributes(content))
        return addresses

    def create(self, name: str) -> None:
        """Create an empty set. Raises NetlinkError."""
        self._request(
            _CREATE, CREATE | EXCLUSIVE, text(_A_NAME, name), text(_A_TYPE, TYPE), attribute(_A_REVISION, b"\0"),
            attribute(_A_FAMILY, bytes([_INET])), nested(_A_DATA),
        )  # fmt: skip

    def destroy(self, name: str) -> None:
        """Delete a set that no rule uses. Raises NetlinkError."""
        self._request(_DESTROY, 0, text(_A_NAME, name))

    def add(self, name: str, addresses: Iterable[str]) -> None:
        """Add addresses; those that are members already are skipped. Raises NetlinkError."""
        for address in addresses:
            self._change(_ADD, name, address)

    def remove(self, name: str, addresses: Iterable[str]) -> None:
        """Remove addresses; those that are no members are skipped. Raises NetlinkError."""
        for address in addresses:
            self._change(_DELETE, name, address)

    def _change(self, command: int, name: str, address: str) -> None:
        packed = nested(_D_IP, attribute(_IPV4 | _BIG_ENDIAN, IPv4Address(address).packed))
        try:
            self._request(command, EXCLUSIVE, text(_A_NAME, name), nested(_A_DATA, packed))
        except NetlinkError as error:
            if error.errno != _EXIST:
                raise

    def _request(self, command: int, flags: int, *inner: bytes) -> list[tuple[int, bytes]]:
        body = struct.pack("=BBH", _INET, 0, 0) + attribute(_A_PROTOCOL, bytes([_PROTOCOL])) + b"".join(inner)
        try:
            return self._link.request(_SUBSYSTEM | command, flags, body)
        except NetlinkError as error:
            explanation = _ERRORS.get(error.errno or 0)
            raise NetlinkError(error.errno, explanation) if explanation else error from error


def _address(entry: bytes) -> str:
    inner = dict(attributes(dict(attributes(entry)).get(_D_IP, b"")))
    return str(IPv4Address(inner[_IPV4]))
