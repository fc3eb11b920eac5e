#!/usr/bin/env python3
"""Runs a command in an emulated arm64 guest with Debian's 6.1 kernel and one unified cgroup v2 tree.

    python -m scripts.guestarm64 [--out DIR] [--timeout SECONDS] [--cpus NUMBER] -- COMMAND [ARGUMENT ...]

Like scripts/guest.py, but the guest has a root file system of its own: Debian's arm64 packages and the Python packages
of requirements/dev.txt, unpacked without running their programs, with this repository at its path and BPF objects that
were compiled for arm64. The first run fetches 250 MB into build/guest/arm64. Needs scripts/apt/arm64.txt.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import sys
from hashlib import sha256
from pathlib import Path

from scripts.guest import GUEST, ROOT, GuestError, Machine, capture, main

FOLDER = GUEST / "arm64"
TREE = FOLDER / "root"
SITE = TREE / "usr/lib/python3/dist-packages"
OBJECTS = FOLDER / "objects"
META_PACKAGE = "linux-image-arm64"
PACKAGES = (
    *("base-files", "base-passwd", "bash", "busybox-static", "coreutils", "dash", "diffutils", "findutils", "grep"),
    *("gzip", "hostname", "kmod", "libc-bin", "login", "mawk", "mount", "procps", "sed", "tar", "udev", "util-linux"),
    *("dmsetup", "e2fsprogs", "file", "gcc", "ipset", "iproute2", "iptables", "libbpf1", "libc6-dev", "libstdc++6"),
    "python3",
)  # fmt: skip
"""Debian's essential programs that the guest runs, then those of the tests."""
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
PYTHON = "3.11"
"""Debian 12's."""
BTF_HEADER = struct.pack("<HBBI", 0xEB9F, 1, 0, 24)
"""Magic number, version, flags and length of the header; offset and length of types and of strings follow."""
CONDITIONAL = re.compile(r"^\S+ ; .*\\\n(?: +--hash=.*\n)+", re.MULTILINE)
"""A requirement of some machines only: pip would evaluate its condition for the machine that it runs on."""


def arm64() -> Machine:
    """The guest, fetched and unpacked if it is missing or older than its inputs. Raises `GuestError`."""
    requirements = (ROOT / "requirements/dev.txt").read_text()
    stamp = FOLDER / f"ready-{sha256((requirements + repr(PACKAGES)).encode()).hexdigest()[:16]}"
    if not stamp.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        SITE.mkdir(parents=True)
        print("guest: fetching Debian's arm64 packages", file=sys.stderr, flush=True)
        unpack_debian()
        print("guest: fetching Python's arm64 packages", file=sys.stderr, flush=True)
        unpack_python(CONDITIONAL.sub("", requirements))
        stamp.touch()
    (kernel,) = (TREE / "boot").glob("vmlinuz-*")
    compile_objects(kernel)
    return Machine(
        kernel,
        ("--arch", "arm64", "--root", str(TREE), "--force-9p", f"--rodir={ROOT}={ROOT}"),
        (f"mount --bind {shlex.quote(str(OBJECTS))} {shlex.quote(str(ROOT / 'koordlet/probes/objects'))}",),
    )


def unpack_debian() -> None:
    """The packages with all that they depend on. apt gets a state of its own, as if this were an arm64 machine."""
    state = FOLDER / "apt"
    for directory in ("lists/partial", "archives/partial"):
        (state / directory).mkdir(parents=True)
    status, config = state / "status", state / "config"
    status.touch()
    config.write_text(
        f'APT::Architecture "arm64"; APT::Architectures "arm64"; Dir::State "{state}"; Dir::State::status "{status}";'
        f' Dir::Cache "{state}"; APT::Sandbox::User "root";'
    )
    environment = {**os.environ, "APT_CONFIG": str(config)}
    capture("apt-get", "update", env=environment)
    command = ("apt-get", "install", "--yes", "--no-install-recommends", "--download-only")
    capture(*command, *PACKAGES, META_PACKAGE, env=environment)
    for archive in (state / "archives").glob("*.deb"):
        capture("dpkg", "-x", str(archive), str(TREE))
    shutil.rmtree(state)
    for name in ("passwd", "group"):
        shutil.copy(TREE / "usr/share/base-passwd" / f"{name}.master", TREE / "etc" / name)
    for mount_point in ("opt", "srv", str(ROOT).lstrip("/")):
        (TREE / mount_point).mkdir(parents=True, exist_ok=True)
    for mount_point in ("etc/fstab", "etc/shadow"):
        (TREE / mount_point).touch()
    (modules,) = (TREE / "lib/modules").iterdir()
    capture("depmod", "-b", str(TREE), modules.name)
    capture("/usr/bin/python3", "-m", "compileall", "-q", str(TREE / "usr/lib" / f"python{PYTHON}"))


def unpack_python(requirements: str) -> None:
    pinned = FOLDER / "requirements.txt"
    pinned.write_text(requirements)
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    capture(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", str(SITE), "--python-version", PYTHON,
        *platforms, "--only-binary=:all:", "--require-hashes", "-r", str(pinned),
    )  # fmt: skip


def compile_objects(kernel: Path) -> None:
    """What `make -C bpf` makes on an arm64 machine: the types are those of the guest's kernel."""
    sources, types = FOLDER / "bpf", FOLDER / "btf"
    types.write_bytes(btf(kernel.read_bytes()))
    shutil.copytree(ROOT / "bpf", sources, ignore=shutil.ignore_patterns("vmlinux.h"), dirs_exist_ok=True)
    capture("make", "-s", "-C", str(sources), "ARCH=arm64", f"VMLINUX_BTF={types}", f"OUT={OBJECTS}")


def btf(image: bytes) -> bytes:
    """The types of an uncompressed kernel. Raises `GuestError`."""
    start = image.find(BTF_HEADER)
    if start < 0:
        raise GuestError("the arm64 kernel has no BTF")
    _, _, strings, length = struct.unpack_from("<4I", image, start + len(BTF_HEADER))
    return image[start : start + 24 + strings + length]


if __name__ == "__main__":
    sys.exit(main(arm64))
