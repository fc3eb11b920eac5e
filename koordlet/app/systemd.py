"""What a service tells systemd (sd_notify(3)): one datagram into the socket that $NOTIFY_SOCKET names.

Called by binaries that run as units of `Type=notify`. Outside systemd there is no such variable and nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from koordlet.app.logging import get_logger

log = get_logger(__name__)

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the supervisor was told. One that can't be told is said in the log; it ends what never gets ready."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # an abstract name
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        log.warning("supervisor not told", state=state, error=str(error))
        return False
    return True
