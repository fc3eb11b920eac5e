#!/usr/bin/env python3
"""Generate Python modules from the .proto files of this repository, next to each of them.

Run by `make proto` and by the package build. Imports in the generated modules are absolute from the repository root
(`koordlet.api.hooks.api_pb2`), because protoc gets paths relative to it. A file whose outputs are newer than itself and
this script is skipped; `--force` always generates.
"""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# service: whether the file declares a service and needs gRPC stubs.
PROTOS: dict[str, bool] = {
    "koordlet/api/cri/api.proto": False,
    "koordlet/api/hooks/api.proto": True,
    "koordlet/api/nri/api.proto": False,
    "koordlet/api/nri/ttrpc.proto": False,
    "koordlet/api/podresources/api.proto": False,
}


def outputs(proto: str, *, service: bool) -> list[str]:
    """Files that protoc writes for `proto`, relative to the root."""
    stem = proto.removesuffix(".proto")
    return [f"{stem}_pb2.py", f"{stem}_pb2.pyi"] + ([f"{stem}_pb2_grpc.py"] if service else [])


def is_fresh(root: Path, proto: str, *, service: bool) -> bool:
    """Whether every output exists and is newer than the proto and this script."""
    paths = [root / name for name in outputs(proto, service=service)]
    if not all(path.exists() for path in paths):
        return False
    newest_input = max(path.stat().st_mtime for path in (root / proto, Path(__file__)))
    return min(path.stat().st_mtime for path in paths) >= newest_input


def generate(root: Path = ROOT, *, force: bool = False) -> list[str]:
    """Generate stale modules under `root` and return the files written. Raises RuntimeError when protoc fails."""
    from grpc_tools import protoc

    include = str(resources.files("grpc_tools") / "_proto")
    written: list[str] = []
    for proto, service in PROTOS.items():
        if not force and is_fresh(root, proto, service=service):
            continue
        arguments = ["protoc", f"-I{root}", f"-I{include}", f"--python_out={root}", f"--pyi_out={root}"]
        if service:
            arguments.append(f"--grpc_python_out={root}")
        status = protoc.main([*arguments, proto])
        if status != 0:
            raise RuntimeError(f"protoc failed on {proto} with exit status {status}")
        written += outputs(proto, service=service)
    return written


def main(argv: list[str]) -> int:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description="Generate Python modules from .proto files.")
    parser.add_argument("--force", action="store_true", help="also generate modules that are up to date")
    for name in generate(force=parser.parse_args(argv).force):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
