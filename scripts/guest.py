#!/usr/bin/env python3
"""Runs a command in a guest with Debian's 6.1 kernel and one unified cgroup v2 tree.

    scripts/guest.py [--out DIR] [--timeout SECONDS] [--cpus NUMBER] -- COMMAND [ARGUMENT ...]

The guest sees this machine's root file system read-only (changes under /tmp, /usr, /etc … go to its own memory), has
two emulated CPUs unless told otherwise, PSI, BTF and kernel headers, and runs COMMAND as root in the repository's
directory. What the command writes to $GUEST_OUT comes back in DIR (default build/guest/out). The exit status is the
command's; 125 when the guest itself failed, 124 when time ran out. Emulated: it proves behaviour, not speed.

The first run fetches the kernel and its headers by package name and unpacks them under build/guest; later runs start at
once. Needs the packages of scripts/apt/test.txt and the virtual environment with virtme-ng.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUEST = ROOT / "build" / "guest"
TREE = GUEST / "root"
VENV = ROOT / "build" / "venv"
META_PACKAGE = "linux-image-amd64"
HEADERS_META = "linux-headers-amd64"
TIMEOUT = 1200.0
CPU = "max,avx2=off"
"""Debian's qemu 7.2 emulates AVX2 wrongly: what numpy sorts with it comes out in no order."""
FAILED, TIMED_OUT = 125, 124
LEASH = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 "-$$") & exec 3<&-; exec "$@"'
"""Runs "$@", and ends the process group when nobody holds the other end of its input any more: we were killed."""


class GuestError(Exception):
    """The guest can't be made or started; the message says what is missing."""


def depends(package: str, prefix: str) -> list[str]:
    """Names that *package* depends on and that begin with *prefix*."""
    output = capture("apt-cache", "depends", package)
    names = [line.split()[-1] for line in output.splitlines() if line.strip().startswith("Depends:")]
    return [name for name in names if name.startswith(prefix)]


def capture(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=GUEST).stdout
    except FileNotFoundError as error:
        raise GuestError(f"{command[0]} is not installed (scripts/apt/test.txt)") from error
    except subprocess.CalledProcessError as error:
        raise GuestError(f"{shlex.join(command)}: {error.stderr.strip()}") from error


def set_up() -> Path:
    """Path of the guest's kernel image, fetched and unpacked if it is not there yet."""
    stamp = GUEST / "ready"
    if not stamp.exists():
        print("guest: fetching the kernel and its headers", file=sys.stderr, flush=True)
        shutil.rmtree(TREE, ignore_errors=True)
        TREE.mkdir(parents=True)
        kernel = depends(META_PACKAGE, "linux-image-")
        headers = depends(HEADERS_META, "linux-headers-")
        if not kernel or not headers:
            raise GuestError(f"{META_PACKAGE} names no kernel; run apt-get update")
        packages = [*kernel, *headers, *depends(headers[0], "linux-")]
        capture("apt-get", "download", *packages)
        for package in packages:
            for archive in GUEST.glob(f"{package}_*.deb"):
                capture("dpkg", "-x", str(archive), str(TREE))
                archive.unlink()
        stamp.touch()
    images = sorted((TREE / "boot").glob("vmlinuz-*"))
    if not images:
        raise GuestError(f"{TREE}/boot holds no kernel; remove {GUEST} and run again")
    return images[-1]


def script(command: list[str], out: Path) -> str:
    """What the guest's shell runs. The headers' links point to /usr/src, so that is where they are shown."""
    return "; ".join(
        [
            f"mount --bind {shlex.quote(str(TREE / 'usr/src'))} /usr/src",
            f"cd {shlex.quote(str(ROOT))}",
            # Compiling Python is slow here: what the first process compiled the others find in memory.
            f"export GUEST_OUT={shlex.quote(str(out))} PYTHONPYCACHEPREFIX=/tmp/pycache PYTHONUNBUFFERED=1 HOME=/tmp"
            f" HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis PATH={shlex.quote(str(VENV / 'bin'))}:$PATH",
            shlex.join(command),
            'echo $? > "$GUEST_OUT/status"',
        ]
    )


def run(command: list[str], out: Path, timeout: float = TIMEOUT, cpus: int = 2) -> int:
    """Boot, run, come back; returns the command's exit status. Raises `GuestError`."""
    image = set_up()
    vng = VENV / "bin" / "vng"
    if not vng.exists():
        raise GuestError(f"{vng} is missing; run scripts/setup.sh test")
    out.mkdir(parents=True, exist_ok=True)
    status = out / "status"
    status.unlink(missing_ok=True)
    boot = [
        str(vng), "--disable-kvm", "--run", str(image), "--cpus", str(cpus), "--memory", "2G", "--append", "psi=1",
        "--rwdir", str(out), f"--qemu-opts=-cpu {CPU}", "--", script(command, out),
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}"}
    leashed = ["sh", "-c", LEASH, "sh", *boot]
    process = subprocess.Popen(leashed, cwd=ROOT, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"guest: no end after {timeout:.0f} s", file=sys.stderr)
        return TIMED_OUT
    finally:
        end_group(process)
    try:
        return int(status.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise GuestError(f"the guest ended without a status (vng: {process.returncode})") from error


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End qemu with its parents: the whole process group that we started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def stop(_number: int, _frame: object) -> None:
    """Asked to end: unwind, so that `run` ends the guest."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=GUEST / "out")
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    try:
        return run(options.command, options.out.resolve(), options.timeout, options.cpus)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
