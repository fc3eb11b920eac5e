"""A node with systemd as PID 1: a machine within this one, of namespaces and its own cgroup.

Its root is this machine's file system with all changes in memory; it has only the units that tests add; /sys/fs/cgroup
is one cgroup, in which systemd creates slices, scopes and services as on a real machine. Its network is this machine's
or only a loopback. It needs a mount of cgroup v2 and has that mount's controllers; if they are mounted as v1 it has
none, so units run without limits and no container can be created. Its power can be cut: files survive to the next boot,
those in /run do not. `close` leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.waiting import wait_until

PLACES = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where cgroup v2 is."""
CACHED_ROOT = Path("/run/host")
"""In the emulated guest the same file system as /, cached in memory (scripts/guest.py)."""
CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
SPACES = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net")
PATIENCE = 400.0
SYSTEMD = "/lib/systemd/systemd --system --unit=node.target --log-target=console --show-status=no"
DISK = """
mount -t tmpfs -o mode=0755 node "$PLACE"
cd "$PLACE"
mkdir upper work root run containerd docker
while read -r _; do sh -ec "$POWER" <&- || true; done
"""
"""What survives a boot: the disk. A line of input starts the next boot."""
POWER = """
echo 0 >"$GROUP/cgroup.procs"
exec unshare --cgroup sh -ec '
echo 0 >"${GROUP%/*}/cgroup.procs"
exec unshare $NETWORK --mount --pid --uts --ipc --fork --kill-child sh -ec "$INNER"'
"""
"""The parent of PID 1 must not stay in its root group: a group with processes cannot enable controllers for
children."""
INNER = """
echo 0 >"$GROUP/cgroup.procs"
[ -z "$NETWORK" ] || ip link set lo up
mount --make-rprivate /
mount -t overlay -o "lowerdir=$LOWER,upperdir=$PLACE/upper,workdir=$PLACE/work" node "$PLACE/root"
cd "$PLACE/root"
mount -t proc proc proc
mount --bind -o ro proc/sys proc/sys # of the whole machine
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=0755 dev dev
while read -r name number; do mknod -m 666 "dev/$name" c 1 "$number"; done <<END
null 3
zero 5
full 7
random 8
urandom 9
END
ln -s /proc/self/fd dev/fd
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
for folder in dev/shm run tmp; do
  mkdir -p "$folder"
  mount -t tmpfs -o mode=0755 "$folder" "$folder"
done
cp -a "$PLACE/run" .
for name in containerd docker; do # which put an overlay on it
  mkdir -p "var/lib/$name"
  mount --bind "$PLACE/$name" "var/lib/$name"
done
chmod 1777 dev/shm tmp
echo "$BINDS" | while read -r source target; do
  [ -z "$source" ] || { mkdir -p ".$target"; mount --rbind "$source" ".$target"; }
done
if [ ! -e "$PLACE/new" ]; then
  rm -rf etc/fstab etc/systemd/system lib/systemd/system-generators
  for target in sysinit local-fs multi-user sockets timers; do rm -rf "lib/systemd/system/$target.target.wants"; done
  mkdir -p etc/systemd/system
  printf '[Unit]\\nRequires=dbus.socket\\nWants=multi-user.target\\n' >etc/systemd/system/node.target
  touch "$PLACE/new"
fi
mkdir run/before
pivot_root . run/before
umount -l /run/before
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin $SYSTEMD </dev/null
"""


def children(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip() if pid else ""
    except FileNotFoundError:  # it has ended
        return ""


class SystemdNode:
    """`binds`: this machine's folder -> its path in the node. Output of services goes to `log`."""

    def __init__(self, folder: Path, binds: Mapping[Path, str], *, own_network: bool = False) -> None:
        top = next((place for place in PLACES if (place / "cgroup.controllers").exists()), None)
        assert top is not None, f"cgroup v2 is mounted at none of {PLACES}"
        self.log, self._place = folder / "systemd.log", folder / "node"
        self._place.mkdir()
        for controller in set(CONTROLLERS) & set((top / "cgroup.controllers").read_text().split()):
            (top / "cgroup.subtree_control").write_text(f"+{controller}")
        self._group = top / f"koord-systemd-{os.getpid()}"
        environment = {
            **os.environ,
            "GROUP": str(self._group),
            "PLACE": str(self._place),
            "LOWER": str(CACHED_ROOT if CACHED_ROOT.is_mount() else "/"),
            "BINDS": "\n".join(f"{source} {target}" for source, target in binds.items()),
            "NETWORK": "--net" if own_network else "",
            "SYSTEMD": SYSTEMD,
            "POWER": POWER,
            "INNER": INNER,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # ends with this process, and so does everything it started
                ["setpriv", "--pdeathsig=KILL", "unshare", "-m", "--pid", "--fork", "--kill-child", "sh", "-ec", DISK],
                env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self.boot()
        except BaseException:
            self.close()
            raise

    def boot(self) -> None:
        """Wait until all enabled units are started."""
        assert self._process.stdin is not None
        self._group.mkdir()
        self._process.stdin.write(b"boot\n")
        self._process.stdin.flush()
        self.pid = int(wait_until(self._first, "PID 1", PATIENCE))
        wait_until(self._up, "systemd up", PATIENCE)

    def cut_power(self) -> None:
        """Kill every process at once."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not self._first(), "PID 1 goes", PATIENCE)
        wait_until(self._remove, f"{self._group} goes", PATIENCE)

    def on_disk(self, name: str) -> Path:
        """Create a file that survives the next boot. Also in /run, which is on disk on some nodes."""
        disk = Path(f"/proc/{self._process.pid}/root{self._place}")
        path = disk / name.lstrip("/").replace("var/run/", "run/")
        if not path.is_relative_to(disk / "run"):
            path = disk / "upper" / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _first(self) -> str:
        """The process three levels below: `DISK`, `POWER`, PID 1."""
        assert self._process.poll() is None, self.log.read_text()
        pids = str(self._process.pid)
        for _ in range(3):
            pids = children(pids)
        return pids

    def _up(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        return self.path("/run/systemd/private").exists() and self.systemctl("is-active", "node.target", ok=False) == (
            "active"
        )

    def path(self, name: str) -> Path:
        """A path of the node as seen from this machine (/var/run, an absolute link, would lead to this machine's)."""
        return Path(f"/proc/{self.pid}/root{name.replace('/var/run/', '/run/')}")

    def group(self, name: str) -> Path:
        """A cgroup of the node."""
        return self._group / name.lstrip("/")

    def put(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def run(self, *command: str, ok: bool = True, environment: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run `command` in the node; stdout holds both outputs."""
        inside = ["nsenter", f"--target={self.pid}", *SPACES, "--root", "--wd", "env", *environment]
        done = subprocess.run(
            [*inside, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, f"{command}: {done.stdout}\n{self.log.read_text()[-5000:]}"
        return done

    def systemctl(self, *words: str, ok: bool = True) -> str:
        return self.run("systemctl", *words, ok=ok).stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", f"--property={name}", unit)

    def main_pid(self, unit: str) -> int:
        """Main pid of a service in this machine's pid namespace; 0 while it does not run."""
        inner = self.show(unit, "MainPID")
        for pid in self.pids(unit) if inner != "0" else []:
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):  # a child that has ended since then
                continue
            if status.partition("NSpid:")[2].splitlines()[0].split()[-1] == inner:
                return pid
        return 0

    def pids(self, unit: str) -> list[int]:
        """Pids of a service in this machine's pid namespace; without calling systemd, as each call costs a process."""
        try:
            return [int(pid) for pid in self.group(f"system.slice/{unit}/cgroup.procs").read_text().split()]
        except OSError as error:  # the group is absent or removed while it is read
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            return []

    def make_slice(self, name: str, properties: Mapping[str, int] = {}) -> None:
        """Create a pod's slice as a kubelet does: a transient unit with these numbers as properties."""
        fixed = ["DefaultDependencies", "b", "no"]
        accounting = [word for kind in ("CPU", "Memory", "Tasks") for word in (f"{kind}Accounting", "b", "yes")]
        numbers = [word for key, value in properties.items() for word in (key, "t", str(value))]
        count = 1 + 3 + len(properties)
        self.run(
            "busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", name, "replace",
            str(count), *fixed, *accounting, *numbers, "0",
        )  # fmt: skip

    def close(self) -> None:
        """End PID 1, and thereby every process of the node, and remove the cgroups."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        wait_until(self._remove, f"{self._group} goes", PATIENCE)
        shutil.rmtree(self._place)

    def _remove(self) -> bool:
        if (self._group / "cgroup.procs").exists():
            (self._group / "cgroup.kill").write_text("1")
        for folder, _, _ in os.walk(self._group, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:  # the kernel needs a moment to remove killed processes
                time.sleep(0.05)
                return False
        return not self._group.exists()
