"""The interface of the IPv4 default route, from /proc/net/route (proc_net(5))."""

from __future__ import annotations

from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots

_UP = 1


def default_interface(roots: Roots) -> str | None:
    """Of the route with the lowest metric; None without a default route. Raises MalformedFile."""
    path = roots.proc / "net/route"
    text = read_text(path)
    best: tuple[int, str] | None = None
    for line in (text or "").splitlines()[1:]:
        fields = line.split()
        try:
            interface, destination, flags, metric, mask = (
                fields[0],
                fields[1],
                int(fields[3], 16),
                int(fields[6]),
                fields[7],
            )
        except (IndexError, ValueError) as error:
            raise MalformedFile(path, line, "expected at least eight fields") from error
        if int(destination, 16) == 0 and int(mask, 16) == 0 and flags & _UP and (best is None or metric < best[0]):
            best = metric, interface
    return None if best is None else best[1]
