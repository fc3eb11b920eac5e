"""What a process leaves out while it loads its modules, because it would be a quarter of the time until it works.

Garbage: what is loaded stays, and every collection looks at all of it (a tenth of koordlet's start). Trust: aiohttp
reads the system's certificates twice when it is imported (70 ms), for requests that say nothing of whom they trust;
whoever loads it this way must say so in each (clients of API server and kubelet do). `SSL_CERT_FILE`, where it is set,
is read as ever. Names of files: aiohttp also reads what the system thinks of 2,000 endings (0.5 MB for good), for a
server of files. Imports nothing of ours.
"""

from __future__ import annotations

import gc
import mimetypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_CERTIFICATES = "SSL_CERT_FILE"


@contextmanager
def loading() -> Iterator[None]:
    """Import inside. No garbage is collected from here on until `loaded`."""
    gc.disable()
    given = _CERTIFICATES in os.environ
    os.environ.setdefault(_CERTIFICATES, os.devnull)
    read, mimetypes.inited = mimetypes.inited, True
    try:
        yield
    finally:
        mimetypes.inited = read
        if not given:
            del os.environ[_CERTIFICATES]


def loaded() -> None:
    """Collect again. What loading left behind goes (0.6 MB, 35 ms); what there is by now is not looked at any more."""
    gc.collect()
    gc.freeze()
    gc.enable()
