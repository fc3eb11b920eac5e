"""The archive of `kubectl koord` for krew, and its manifest: `python -m scripts.install.krew --uri ADDRESS`.

ADDRESS is where the archive will be downloaded from; the repository has none. The archive holds the packages that the
plugin needs, from the virtual environment and this checkout, for this architecture and Python version; `koordctl up`
needs more and is not part of it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import platform
import sys
import tempfile
from pathlib import Path

from koordlet.version import VERSION
from scripts.install import rootfs
from scripts.install.imagespecs import ImageSpec

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "deploy/krew/koord.yaml"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Of the kernel -> of krew."""
PLUGIN = ImageSpec(
    target="krew",
    name="kubectl-koord",
    account="",
    packages=(),
    distributions=(
        "aiohttp", "click", "cryptography", "google-re2", "httptools", "msgspec", "prometheus-client", "pyyaml", "rich",
        "textual",
    ),
    product=("koordlet", "control"),
    commands=("kubectl-koord",),
)  # fmt: skip
LAUNCHER = f"""#!/bin/sh
# krew links to this file
here=$(dirname "$(readlink -f "$0")")
command -v python{PYTHON} >/dev/null || {{
  echo "kubectl koord needs python{PYTHON}, which is not in PATH" >&2
  exit 1
}}
PYTHONPATH=$here/lib exec python{PYTHON} -m control.ctl.main "$@"
"""


def architecture() -> str:
    """krew's name of this machine's architecture. Raises ValueError for one that it has no name for here."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ValueError(f"architecture {machine}: not one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]


def write_archive(folder: Path) -> Path:
    """Write the archive; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = {f"lib/{name}": item for name, item in rootfs.python(PLUGIN).items()}
    tree["kubectl-koord"] = rootfs.Entry(0o755, LAUNCHER.encode())
    tree["LICENSE"] = rootfs.entry(ROOT / "LICENSE")
    archive = folder / f"kubectl-koord-v{VERSION}-linux-{architecture()}.tar.gz"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        tar = rootfs.write_tar(tree, Path(place) / "plugin.tar")
        archive.write_bytes(gzip.compress(tar.read_bytes(), compresslevel=6, mtime=0))
    return archive


def manifest(uri: str, sha256: str) -> str:
    """The template, filled in. Raises ValueError for a placeholder that is left."""
    text = TEMPLATE.read_text(encoding="utf-8")
    values = {"VERSION": f"v{VERSION}", "PYTHON": PYTHON, "ARCH": architecture(), "URI": uri, "SHA256": sha256}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    if "@" in text.replace(uri, ""):
        raise ValueError(f"{TEMPLATE}: a placeholder without value")
    return text


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.install.krew")
    parser.add_argument("--uri", required=True, help="address of the archive, for the manifest")
    parser.add_argument("--out", type=Path, default=ROOT / "build/krew")
    args = parser.parse_args(argv)
    archive = write_archive(args.out)
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    (args.out / "koord.yaml").write_text(manifest(args.uri, checksum), encoding="utf-8")
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
    print(args.out / "koord.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
