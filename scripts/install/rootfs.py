"""The file tree of a container image, from this machine's Debian packages, the virtual environment and this checkout.

Nothing is downloaded, and no other image is used. Python is compiled in advance: the images run with a read-only root.
The tree describes itself in /usr/share/sbom (SPDX). Tars are deterministic: sorted, owned by root, dated by the commit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from koordlet.version import VERSION
from scripts.install import debian
from scripts.install.imagespecs import ImageSpec

ROOT = Path(__file__).resolve().parents[2]
SITE = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/dist-packages"
SBOM = "usr/share/sbom/koordinator-py.spdx.json"
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "/run"}
_DIRECTORIES = (
    "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr/lib64", "usr/local/bin", "var/lib", "var/log",
)  # fmt: skip
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nkoordinator:x:65532:65532::/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nkoordinator:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_UNUSED = re.compile(
    r"(^|/)(tests?|__pycache__|f2py|idlelib|lib2to3|ensurepip|tkinter|turtledemo|gconv)(/|$)|\.(a|h|pxd|pyi|pyx)$"
)


def write(spec: ImageSpec, folder: Path) -> Path:
    """Write `folder`/rootfs.tar and `folder`/sbom.spdx.json; the path of the tar. Raises MissingPackages."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        root = Path(place) / "root"
        _fill(spec, root)
        shutil.copy(root / SBOM, folder / "sbom.spdx.json")
        return write_tar(root, folder / "rootfs.tar")


def _fill(spec: ImageSpec, root: Path) -> None:
    for directory in _DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    for link, target in _LINKS.items():
        (root / link).symlink_to(target)
    for name, text in _ACCOUNTS.items():
        (root / name).write_text(text)
    packages = debian.closure(spec.packages)
    for path in debian.files(packages):
        if not _UNUSED.search(str(path)):
            _copy(path, root / str(path).lstrip("/"))
    _alternatives(root)
    distributions = copy_python(spec, root / SITE)
    _write_commands(spec, root / "usr/local/bin")
    _write_sbom(spec, packages, distributions, root / SBOM)
    compiler = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", f"-s{root}", "-p/"]
    subprocess.run([*compiler, str(root / "usr/lib"), str(root / SITE)], check=True)
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)


def copy_python(spec: ImageSpec, site: Path) -> dict[str, metadata.Distribution]:
    """Copy the distributions, and the product with its commit; the distributions by name."""
    distributions = _distributions(spec)
    for distribution in distributions.values():
        _copy_distribution(distribution, site)
    for name in spec.product:
        _copy_product(name, site)
    (site / "koordlet/COMMIT").write_text(f"{commit()}\n")
    return distributions


def commit() -> str:
    """The commit of this checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


def _alternatives(root: Path) -> None:
    """The machine's links of /etc/alternatives (iptables, awk …) whose targets the tree has."""
    (root / "etc/alternatives").mkdir()
    for link in Path("/etc/alternatives").iterdir():
        if link.is_symlink() and (root / str(link.readlink()).lstrip("/")).exists():
            for command in (Path("/usr/bin") / link.name, Path("/usr/sbin") / link.name):
                if command.is_symlink():
                    _copy(link, root / "etc/alternatives" / link.name)
                    _copy(command, root / str(command).lstrip("/"))


def _distributions(spec: ImageSpec) -> dict[str, metadata.Distribution]:
    """Name -> distribution, with what they require on this Python. Extras are left out."""
    result: dict[str, metadata.Distribution] = {}
    waiting = list(spec.distributions)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in result:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in spec.distributions:
                raise
            continue  # required on another Python or system only
        result[name] = distribution
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    return dict(sorted(result.items()))


def _copy_distribution(distribution: metadata.Distribution, site: Path) -> None:
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if not str(file).startswith("..") and not _UNUSED.search(str(file)) and source.is_file():
            _copy(source, site / str(file))


def _copy_product(name: str, site: Path) -> None:
    for path in sorted((ROOT / name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            _copy(path, site / path.relative_to(ROOT))


def _write_commands(spec: ImageSpec, folder: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for command in spec.commands:
        module, _, function = scripts[command].partition(":")
        path = folder / command
        path.write_text(
            f"#!/usr/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        path.chmod(0o755)


def _write_sbom(
    spec: ImageSpec, packages: dict[str, str], distributions: dict[str, metadata.Distribution], path: Path
) -> None:
    """SPDX 2.3: one package for each Debian package and Python distribution, with package URLs."""
    urls = [(name, version, f"pkg:deb/debian/{name}@{version}") for name, version in sorted(packages.items())]
    urls += [
        (name, distribution.version, f"pkg:pypi/{name}@{distribution.version}")
        for name, distribution in distributions.items()
    ]
    urls.append(("koordinator-py", VERSION, f"pkg:pypi/koordinator-py@{VERSION}"))
    items = [
        {
            "SPDXID": f"SPDXRef-{number}",
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}
            ],
        }
        for number, (name, version, url) in enumerate(urls)
    ]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": spec.name,
        "documentNamespace": f"urn:koordinator-py:{spec.target}:{commit()}",
        "creationInfo": {"created": _commit_time(), "creators": ["Tool: scripts/install/rootfs.py"]},
        "packages": items,
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": item["SPDXID"]}
            for item in items
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True))


def _commit_time(form: str = "%cd") -> str:
    command = ["git", "log", "-1", f"--format={form}", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]
    environ = {**os.environ, "TZ": "UTC"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environ).stdout.strip()


def write_tar(root: Path, path: Path) -> Path:
    """Write `root` as a tar; its path."""
    date = int(_commit_time("%ct"))

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = date
        entry.mode = 0o1777 if entry.name == "tmp" else entry.mode & 0o755
        return entry

    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for child in sorted(root.rglob("*")):
            tar.add(child, str(child.relative_to(root)), recursive=False, filter=normal)
    return path
