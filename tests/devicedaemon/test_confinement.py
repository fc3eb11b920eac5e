"""What vendors' programs can still do after the daemon's start, on this kernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from devicedaemon.confinement import KEPT, NAMES, numbers
from tests.devicedaemon.machine import ROOT, Machine, all_texts

TRIES = """
import subprocess, sys
from pathlib import Path
from devicedaemon.confinement import confine, numbers
host = Path(sys.argv[1])
confine(numbers(sys.argv[2].split(",")), host)
for line in sys.stdin.read().splitlines():
    done = subprocess.run(["chroot", str(host), "/bin/busybox", "sh", "-c", line], capture_output=True, text=True)
    print((done.stdout + done.stderr).strip() or f"status {done.returncode}")
"""
MASK = sum(1 << number for number in numbers(KEPT))
pytestmark = pytest.mark.kernel


def tried(machine: Machine, *commands: str, keep: tuple[str, ...] = KEPT) -> list[str]:
    """The output of each command, which runs on the machine's root: a mount with another mount in it."""
    script = (
        f"set -e; mount --make-rprivate /; mount --bind {machine.host} {machine.host}; mkdir -p {machine.host}/var "
        f"{machine.host}/tmp {machine.host}/proc; mount -t tmpfs none {machine.host}/var; "
        f"mount -t proc none {machine.host}/proc; "
        f'exec "$@"'
    )
    confined = [sys.executable, "-c", TRIES, str(machine.host), ",".join(keep)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *confined],
        input="\n".join(commands), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_tools_have_two_capabilities_and_gain_none(machines: Callable[..., Machine]) -> None:
    lines = tried(machines(chroot=True), "/bin/busybox grep -E '^(Cap|NoNew)' /proc/self/status")
    status = dict(line.replace("\t", " ").split(": ") for line in lines)
    before = int(Path("/proc/self/status").read_text().split("CapBnd:")[1].split()[0], 16)
    assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == int(status["CapPrm"], 16) == MASK & before
    assert (status["CapInh"], status["CapAmb"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")


def test_the_host_is_read_only_with_its_mounts(machines: Callable[..., Machine]) -> None:
    machine = machines(chroot=True)
    lines = tried(
        machine, "echo a > /bin/new", "echo a > /var/new", "/bin/busybox mount -o remount,rw /",
        "echo a > /tmp/new && cat /tmp/new",
    )  # fmt: skip
    assert ["ead-only" in line for line in lines] == [True, True, False, False], lines
    assert "denied" in lines[2] or "permitted" in lines[2], lines
    assert lines[3] == "a"
    assert not list(machine.host.rglob("new")), "nothing of it reaches the host"


@pytest.mark.parametrize(
    ("missing", "command", "reason"),
    [("SYS_CHROOT", "echo hello", "chroot"), ("DAC_OVERRIDE", "cat /state/device", "denied")],
)
def test_each_kept_capability_is_needed(
    machines: Callable[..., Machine], missing: str, command: str, reason: str
) -> None:
    machine = machines(chroot=True)
    device = machine.host / "state/device"
    device.write_text("opened\n")
    device.chmod(0o660)
    subprocess.run(["chown", "1000:1000", str(device)], check=True)
    (works,) = tried(machine, command)
    assert works in ("hello", "opened")
    lines = tried(machine, command, keep=tuple(name for name in KEPT if name != missing))
    assert reason in " ".join(lines), lines


def test_an_unknown_capability_ends_the_start(machine: Machine) -> None:
    status, _, log = machine.once("--oneshot", "--keep-capabilities=SYS_CHROOT,NO_SUCH")
    assert (status, "unknown capabilities: NO_SUCH" in log) == (1, True)


def test_more_capabilities_can_be_kept(machine: Machine) -> None:
    machine.plug()
    machine.install(all_texts())
    assert machine.once("--oneshot", f"--keep-capabilities={','.join(NAMES)}")[0] == 0
