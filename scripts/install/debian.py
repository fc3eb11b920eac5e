"""Files and versions of Debian packages that are installed on this machine."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

_SKIPPED = tuple(f"usr/share/{name}/" for name in ("bash-completion", "doc-base", "info", "lintian", "locale", "man"))


class MissingPackages(Exception):
    """Packages that an image needs are not installed."""


def closure(names: Collection[str]) -> dict[str, str]:
    """Name -> version of the packages and of the installed ones that they depend on. Raises MissingPackages."""
    missing = sorted(name for name in names if not _fields(name))
    if missing:
        raise MissingPackages(f"these Debian packages are not installed: {', '.join(missing)}")
    versions: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        fields = {} if name in versions else _fields(name)
        if fields:
            versions[name] = fields["version"]
            for alternatives in fields["depends"].split(","):
                waiting += [
                    alternative.split()[0].partition(":")[0]
                    for alternative in alternatives.split("|")
                    if alternative.strip()
                ]
    return versions


def files(names: Collection[str]) -> Iterator[Path]:
    """Files and links of the packages below /usr, and of copyright notices; without manuals and translations."""
    listed = subprocess.run(["dpkg", "-L", *sorted(names)], capture_output=True, text=True, check=True).stdout
    for line in sorted(set(listed.splitlines())):
        # A package may name /lib/x, which is /usr/lib/x where /lib is a link.
        path = Path(line).parent.resolve() / Path(line).name
        inside = str(path).lstrip("/")
        documentation = inside.startswith("usr/share/doc/") and path.name != "copyright"
        included = inside.startswith("usr/") and not inside.startswith(_SKIPPED) and not documentation
        if included and (path.is_symlink() or path.is_file()):
            yield path


def _fields(name: str) -> dict[str, str]:
    """Version and dependencies of an installed package; empty when it is not installed."""
    return _installed().get(name, {})


@functools.cache
def _installed() -> dict[str, dict[str, str]]:
    """Those of all packages: one call of dpkg-query takes as long as one for a package."""
    form = "${db:Status-Abbrev}\\t${Package}\\t${Version}\\t${Depends}, ${Pre-Depends}\\n"
    done = subprocess.run(["dpkg-query", "-W", f"-f={form}"], capture_output=True, text=True, check=True)
    packages: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        status, name, version, depends = line.split("\t", 3)
        if status.startswith("ii"):
            packages.setdefault(name, {"version": version, "depends": depends})
    return packages
