"""Builds the container images with Docker: `make images`.

    python -m scripts.install.images [--out build/images] [--trees | --archive]

Each folder of --out gets rootfs.tar and sbom.spdx.json, which is in the image, too. Without Docker: --trees makes only
that, --archive makes images.tar of both images, for nodes that have only containerd.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from koordlet.version import VERSION
from scripts.install import archive, rootfs
from scripts.install.debian import MissingPackages
from scripts.install.imagespecs import SPECS, ImageSpec

ROOT = Path(__file__).resolve().parents[2]


def docker_build(spec: ImageSpec, folder: Path) -> None:
    """The classic builder: it needs no frontend image."""
    arguments = {"VERSION": VERSION, "COMMIT": rootfs.commit(), "ACCOUNT": spec.account}
    command = ["docker", "build", "--quiet", f"--file={ROOT / 'Dockerfile'}", f"--tag={spec.name}"]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    subprocess.run([*command, str(folder)], check=True, env={**os.environ, "DOCKER_BUILDKIT": "0"})


def _archive(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        archive.write(path)
    except MissingPackages as error:
        sys.stderr.write(f"images: {error}\n")
        return 1
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    return 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.install.images")
    parser.add_argument("--out", type=Path, default=ROOT / "build/images")
    without_docker = parser.add_mutually_exclusive_group()
    without_docker.add_argument("--trees", action="store_true")
    without_docker.add_argument("--archive", action="store_true")
    args = parser.parse_args(argv)
    if args.archive:
        return _archive(args.out / "images.tar")
    for spec in SPECS:
        folder = args.out / spec.target
        try:
            size = rootfs.write(spec, folder).stat().st_size
        except MissingPackages as error:
            sys.stderr.write(f"images: {spec.name}: {error}\n")
            return 1
        if not args.trees:
            docker_build(spec, folder)
        print(f"{spec.name}: {size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
