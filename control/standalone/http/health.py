"""/healthz, /livez, /readyz (with ?verbose, ?exclude and single checks) and /version."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from control.standalone.http.responses import text_response
from control.standalone.schema.openapi import VERSION

Check = Callable[[], str | None]
"""None when healthy, else the problem."""


class ServerHealth:
    """Named checks, in order; `ready_only` checks count only for /readyz."""

    def __init__(self) -> None:
        self._checks: list[tuple[str, Check, bool]] = [("ping", lambda: None, False)]

    def add(self, name: str, check: Check, *, ready_only: bool = False) -> None:
        self._checks.append((name, check, ready_only))

    def answer(self, path: str, query: Mapping[str, str], excluded: Sequence[str] = ()) -> web.Response | None:
        """The response for a health path, None for any other path."""
        endpoint, _, single = path.strip("/").partition("/")
        if endpoint not in ("healthz", "livez", "readyz"):
            return None
        ready = endpoint == "readyz"
        checks = [(n, c) for n, c, only in self._checks if ready or not only]
        if single:
            checks = [(n, c) for n, c in checks if n == single]
            if not checks:
                return text_response("404 page not found\n", 404)
        lines, failed = [], []
        for name, check in checks:
            if name in excluded:
                lines.append(f"[+]{name} excluded: ok")
                continue
            problem = check()
            if problem is None:
                lines.append(f"[+]{name} ok")
            else:
                lines.append(f"[-]{name} failed: {problem}")
                failed.append(name)
        if failed:
            return text_response("\n".join([*lines, f"{endpoint} check failed"]) + "\n", 500)
        if "verbose" in query and not single:
            return text_response("\n".join([*lines, f"{endpoint} check passed"]) + "\n")
        return text_response("ok")


def version_info(build: str) -> dict[str, Any]:
    """/version. major.minor is the Kubernetes API version that this server implements; `build` is its own version."""
    major, minor, _ = VERSION.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{VERSION}+koord-standalone.{build}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": datetime.fromtimestamp(0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{platform.machine().replace('x86_64', 'amd64').replace('aarch64', 'arm64')}",
    }
