"""The file tree of a container image, from this machine's Debian packages, the virtual environment and this checkout.

Nothing is downloaded, and no other image is used. Python is compiled in advance: the images run with a read-only root.
The tree describes itself in /usr/share/sbom (SPDX). Tars are deterministic: sorted, owned by root, dated by the commit.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from koordlet.version import VERSION
from scripts.install import debian
from scripts.install.imagespecs import ImageSpec

ROOT = Path(__file__).resolve().parents[2]
SITE = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/dist-packages"
COMPILED = ROOT / "build/bytecode"
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
_LIBRARIES = ("usr/lib/", "usr/lib64/")
_COMPILE = """
import json, py_compile, sys
for source, path, target in json.load(sys.stdin):
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(source, cfile=target, dfile=path, doraise=True, invalidation_mode=mode)
"""
_compiling = threading.Lock()
_UNUSED = re.compile(
    r"(^|/)(tests?|__pycache__|f2py|idlelib|lib2to3|ensurepip|tkinter|turtledemo|gconv)(/|$)|\.(a|h|pxd|pyi|pyx)$"
)


@dataclass(frozen=True)
class Entry:
    """A file, with its content or where that is on this machine, or a link."""

    mode: int
    content: bytes | Path = b""
    link: str = ""


Tree = dict[str, Entry]
"""Path without leading slash -> what is there; folders are implied."""


def write(spec: ImageSpec, folder: Path) -> Path:
    """Write `folder`/rootfs.tar and `folder`/sbom.spdx.json; the path of the tar. Raises MissingPackages."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = _tree(spec)
    (folder / "sbom.spdx.json").write_bytes(_content(tree[SBOM]))
    return write_tar(tree, folder / "rootfs.tar", _DIRECTORIES)


def _tree(spec: ImageSpec) -> Tree:
    tree = {name: Entry(0o755, link=target) for name, target in _LINKS.items()}
    tree |= {name: _file(text) for name, text in _ACCOUNTS.items()}
    packages = debian.closure(spec.packages)
    for path in debian.files(packages):
        if not _UNUSED.search(str(path)):
            tree[str(path).lstrip("/")] = entry(path)
    _add_alternatives(tree)
    distributions = _distributions(spec)
    tree |= {f"{SITE}/{name}": item for name, item in python(spec, distributions).items()}
    tree |= {f"usr/local/bin/{name}": item for name, item in _commands(spec).items()}
    tree[SBOM] = _file(_sbom(spec, packages, distributions))
    tree |= compiled({name: item for name, item in tree.items() if name.startswith(("usr/lib/", SITE))})
    tree |= _linker_files(tree)
    return tree


def entry(path: Path) -> Entry:
    """What is at the path on this machine."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Entry(0o755, link=str(path.readlink()))
    return Entry(status.st_mode & 0o755, path)


def _file(text: str, mode: int = 0o644) -> Entry:
    return Entry(mode, text.encode())


def _content(item: Entry) -> bytes:
    return item.content.read_bytes() if isinstance(item.content, Path) else item.content


def python(spec: ImageSpec, distributions: Mapping[str, metadata.Distribution] | None = None) -> Tree:
    """The distributions, and the product with its commit, below the folder that Python imports from."""
    tree: Tree = {}
    for distribution in (distributions or _distributions(spec)).values():
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if not str(file).startswith("..") and not _UNUSED.search(str(file)) and source.is_file():
                tree[str(file)] = entry(source)
    for name in spec.product:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                tree[str(path.relative_to(ROOT))] = entry(path)
    tree["koordlet/COMMIT"] = _file(f"{commit()}\n")
    return tree


def compiled(tree: Tree, kept: Path = COMPILED) -> Tree:
    """Bytecode of all sources. It depends on a source, its path and this Python alone: what was once written to `kept`
    is used again. Another tree may be compiled at the same time."""
    result: Tree = {}
    missing = []
    with _compiling:  # trees have most files in common
        for name, item in tree.items():
            linked = tree.get(os.path.normpath(Path(name).parent / item.link)) if item.link else item
            if name.endswith(".py") and linked and isinstance(linked.content, Path):
                pyc = importlib.util.cache_from_source(name)
                if not (kept / pyc).exists() or not _is_of((kept / pyc).read_bytes(), linked.content.read_bytes()):
                    missing.append((str(linked.content), f"/{name}", str(kept / pyc)))
                result[pyc] = Entry(0o644, kept / pyc)
        if missing:
            subprocess.run([sys.executable, "-c", _COMPILE], input=json.dumps(missing), text=True, check=True)
    return result


def _is_of(pyc: bytes, source: bytes) -> bool:
    """Whether this is bytecode of the source that is not checked against it when it is imported (PEP 552)."""
    unchecked = (1).to_bytes(4, "little")
    return pyc.startswith(importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source))


def commit() -> str:
    """The commit of this checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _add_alternatives(tree: Tree) -> None:
    """The machine's links of /etc/alternatives (iptables, awk …) whose targets the tree has."""
    for link in Path("/etc/alternatives").iterdir():
        if link.is_symlink() and str(link.readlink()).lstrip("/") in tree:
            for command in (Path("/usr/bin") / link.name, Path("/usr/sbin") / link.name):
                if command.is_symlink():
                    tree |= {str(path).lstrip("/"): entry(path) for path in (link, command)}


def _linker_files(tree: Tree) -> Tree:
    """The cache of the dynamic linker and the links to libraries that it makes."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name in _DIRECTORIES:
            (root / name).mkdir(parents=True, exist_ok=True)
        for name, item in tree.items():
            if name in _LINKS or (".so" in name and name.startswith(_LIBRARIES)):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                if item.link:
                    (root / name).symlink_to(item.link)
                else:
                    (root / name).write_bytes(_content(item))
        subprocess.run(["/sbin/ldconfig", "-r", place], check=True)
        result: Tree = {}
        for path in root.rglob("*"):
            name = str(path.relative_to(root))
            if name not in tree and (path.is_symlink() or path.is_file()):
                item = entry(path)
                result[name] = item if item.link else Entry(item.mode, path.read_bytes())
        return result


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


def _commands(spec: ImageSpec) -> Tree:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    tree: Tree = {}
    for command in spec.commands:
        module, _, function = scripts[command].partition(":")
        text = f"#!/usr/bin/python3\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        tree[command] = _file(text, 0o755)
    return tree


def _sbom(spec: ImageSpec, packages: dict[str, str], distributions: dict[str, metadata.Distribution]) -> str:
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
    return json.dumps(document, indent=1, sort_keys=True)


def _commit_time(form: str = "%cd") -> str:
    command = ["git", "log", "-1", f"--format={form}", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]
    environ = {**os.environ, "TZ": "UTC"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environ).stdout.strip()


def write_tar(tree: Tree, path: Path, folders: Collection[str] = ()) -> Path:
    """Write the tree, with the folders that may be empty, as a tar; its path."""
    date = int(_commit_time("%ct"))
    parents = {str(parent) for name in (*tree, *folders) for parent in Path(name).parents} | set(folders)
    items: dict[str, Entry | None] = {**dict.fromkeys(parents - {"."}), **tree}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(items, key=lambda name: name.split("/")):
            item = items[name]
            header = tarfile.TarInfo(name)
            header.mtime = date
            content = b""
            if item is None:
                header.type, header.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            elif item.link:
                header.type, header.mode, header.linkname = tarfile.SYMTYPE, item.mode, item.link
            else:
                content = _content(item)
                header.mode, header.size = item.mode, len(content)
            tar.addfile(header, io.BytesIO(content))
    return path
