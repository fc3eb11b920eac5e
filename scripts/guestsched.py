#!/usr/bin/env python3
"""Runs a command in a guest whose kernel has core scheduling and sched_ext, on CPUs with hardware threads.

    python -m scripts.guestsched [--out DIR] [--timeout SECONDS] -- COMMAND [ARGUMENT ...]

Like scripts/guest.py, with a kernel that no package of Debian has: the first run compiles Debian's source of Linux 6.12
with the options of guestsched.config, and the BPF scheduler of the tests, into build/guest/sched. That takes minutes.
Needs scripts/apt/sched.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from scripts.guest import GUEST, ROOT, GuestError, Machine, capture, main, on_this_root

PACKAGE = "linux-source-6.12"
CONFIG = ROOT / "scripts/guestsched.config"
FOLDER = GUEST / "sched"
SCHEDULER = FOLDER / "fifo.bpf.o"
TOPOLOGY = "-smp 4,sockets=1,cores=2,threads=2"
TELL_EVERY_S = 30.0


def sched() -> Machine:
    """The guest, compiled if it is missing or older than its configuration. Raises `GuestError`."""
    stamp = FOLDER / f"ready-{sha256(CONFIG.read_bytes() + PACKAGE.encode()).hexdigest()[:16]}"
    kernel = FOLDER / "vmlinuz"
    if not stamp.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        compile_kernel(unpacked(), kernel)
        stamp.touch()
    compile_scheduler()
    return on_this_root(kernel, TOPOLOGY)


def unpacked() -> Path:
    """Debian's source of the kernel."""
    print(f"guest: fetching and unpacking {PACKAGE}", file=sys.stderr, flush=True)
    try:
        capture("apt-get", "download", PACKAGE)
    except GuestError as error:
        raise GuestError(f"{error}; it is in Debian 12's security updates: run apt-get update") from error
    (package,) = GUEST.glob(f"{PACKAGE}_*.deb")
    capture("dpkg", "-x", str(package), str(FOLDER))
    package.unlink()
    capture("tar", "-C", str(FOLDER), "-xJf", str(FOLDER / f"usr/src/{PACKAGE}.tar.xz"))
    shutil.rmtree(FOLDER / "usr")
    return FOLDER / PACKAGE


def compile_kernel(source: Path, kernel: Path) -> None:
    """The kernel's image, and the types of its BPF programs; the source is removed."""
    make = ["make", "-C", str(source)]
    capture(*make, "-s", f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig")
    configured = set((source / ".config").read_text().splitlines())
    required = [line for line in CONFIG.read_text().splitlines() if line.startswith("CONFIG_")]
    refused = [line for line in required if line not in configured]
    if refused:
        raise GuestError(f"{PACKAGE} does not accept {', '.join(refused)}")
    log = FOLDER / "compile.log"
    with log.open("w") as output:
        process = subprocess.Popen([*make, f"-j{os.cpu_count()}", "bzImage"], stdout=output, stderr=output)
    began = time.monotonic()
    try:
        while process.poll() is None:
            try:
                process.wait(TELL_EVERY_S)
            except subprocess.TimeoutExpired:
                files = sum(line.startswith("  CC ") for line in log.read_text().splitlines())
                elapsed = time.monotonic() - began
                print(f"guest: compiling the kernel: {files} files, {elapsed:.0f} s", file=sys.stderr, flush=True)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise GuestError(f"the kernel does not compile: {log}\n" + "\n".join(log.read_text().splitlines()[-15:]))
    shutil.copy(source / "arch/x86/boot/bzImage", kernel)
    (FOLDER / "vmlinux.h").write_text(capture("bpftool", "btf", "dump", "file", str(source / "vmlinux"), "format", "c"))
    shutil.rmtree(source)


def compile_scheduler() -> None:
    """The BPF scheduler for the guest's kernel."""
    capture(
        "clang", "-g", "-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
        "-D__TARGET_ARCH_x86", f"-I{FOLDER}", "-c", str(ROOT / "tests/guest/fifo.bpf.c"), "-o", str(SCHEDULER),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sched))
