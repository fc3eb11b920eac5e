"""The output of `--version`, and the User-Agent of API clients."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from koordlet.version import VERSION

COMMIT_FILE = Path(__file__).resolve().parents[1] / "COMMIT"
"""Written into wheels and images; a checkout has none."""
ABBREVIATED = 12
"""Digits of a commit that are shown."""


def commit() -> str:
    """The abbreviated commit: of the file, else of the checkout; "" when neither is there."""
    if COMMIT_FILE.exists():
        return COMMIT_FILE.read_text().strip()[:ABBREVIATED]
    checkout = COMMIT_FILE.parents[1]
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", f"--short={ABBREVIATED}", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip()


def version_line(prog: str) -> str:
    """`koordlet v0.1.0 (commit 0123456789ab, CPython 3.11.2, linux/x86_64)`."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    built = commit()
    known = f"commit {built}, " if built else ""
    return f"{prog} v{VERSION} ({known}{python}, {platform.system().lower()}/{platform.machine()})"


def user_agent(component: str) -> str:
    """The User-Agent header in the form of Go clients: `koordlet/v0.1.0 (linux/x86_64)`."""
    return f"{component}/v{VERSION} ({platform.system().lower()}/{platform.machine()})"
