"""The output of `--version`, and the User-Agent of API clients."""

from __future__ import annotations

import platform

from koordlet.version import VERSION


def version_line(prog: str) -> str:
    """`koordlet v0.1.0 (CPython 3.11.2, linux/x86_64)`."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{prog} v{VERSION} ({python}, {platform.system().lower()}/{platform.machine()})"


def user_agent(component: str) -> str:
    """The User-Agent header in the form of Go clients: `koordlet/v0.1.0 (linux/x86_64)`."""
    return f"{component}/v{VERSION} ({platform.system().lower()}/{platform.machine()})"
