"""What the profile of deploy/koordlet-apparmor refuses to koordlet. Only the guest's kernel has AppArmor. What koordlet
does under the profile is tested by the rest of the suite `confined` (`tests/guest/suites.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.koordlet.process.view import under_profile

pytestmark = pytest.mark.kernel

PROFILE = "koordlet"
DEFAULT = "like_containerds"
RUNTIMES_PROFILE = f"""
profile {DEFAULT} flags=(attach_disconnected,mediate_deleted) {{
  network,
  capability,
  file,
  umount,
  signal receive peer=unconfined,
  signal (send,receive) peer={DEFAULT},
  ptrace (trace,read,tracedby,readby) peer={DEFAULT},
}}
"""
"""What decides here of containerd's default profile for containers."""


def works(code: str) -> bool:
    """Whether the code raises no PermissionError under koordlet's profile."""
    program = f"import os\ntry:\n    {code}\nexcept PermissionError:\n    os._exit(3)"
    done = subprocess.run(under_profile(PROFILE, [sys.executable, "-S", "-c", program]), check=False)
    assert done.returncode in (0, 3)
    return done.returncode == 0


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/etc/koordlet-test", "/dev/sda"]
)
def test_what_koordlet_never_writes_is_refused(path: str) -> None:
    assert not works(f"os.open({path!r}, os.O_WRONLY | os.O_CREAT)")


def test_secrets_of_pods_are_not_readable() -> None:
    secret = Path("/var/lib/kubelet/pods/uid/volumes/kubernetes.io~secret/name/key")
    secret.parent.mkdir(parents=True)
    secret.write_text("x")
    assert not works(f"os.open({os.fspath(secret)!r}, os.O_RDONLY)")
    assert works("os.listdir('/var/lib/kubelet')")


def test_the_library_of_containers_is_not_written() -> None:
    folder = Path("/usr/local/vgpu")
    (folder / "vgpulock").mkdir(parents=True, exist_ok=True)
    assert not works(f"os.open('{folder}/libvgpu.so', os.O_WRONLY | os.O_CREAT)")
    assert works(f"os.open('{folder}/vgpulock/lock', os.O_WRONLY | os.O_CREAT)")


@pytest.fixture
def container() -> Iterator[int]:
    """A process in the runtime's default profile."""
    subprocess.run(["apparmor_parser", "-r", "-K"], input=RUNTIMES_PROFILE, text=True, check=True)
    command = under_profile(DEFAULT, [sys.executable, "-S", "-c", "print(flush=True)\nimport time\ntime.sleep(600)"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def test_a_container_of_the_runtimes_profile_hides_its_namespaces(container: int) -> None:
    """What docs/security.md says that koordlet lacks under the profile: the other profile refuses it."""
    assert works("os.stat('/proc/1/ns/net')")
    assert not works(f"os.stat('/proc/{container}/ns/net')")
    assert works(f"open('/proc/{container}/oom_score_adj', 'w').write('1')")
    assert works(f"open('/proc/{container}/net/snmp').read()")
