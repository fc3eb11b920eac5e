"""Where the kernel's file systems are mounted, as seen from this process.

In a DaemonSet the host's trees are mounted at `/host-*`; on the host they have their usual paths. `agent_mode=hostMode`
selects the host's paths, any other value those of the DaemonSet (spec 03 §1.1). Readers take all paths from here, so
tests can point them at trees of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

AGENT_MODE_ENV = "agent_mode"
HOST_MODE = "hostMode"


@dataclass(frozen=True, slots=True)
class Roots:
    """Every directory can be replaced by the flag of the same name (`--cgroup-root-dir` etc.)."""

    cgroup: Path
    sys: Path
    sys_fs: Path
    """Parent of `resctrl` and `bpf`."""
    proc: Path
    proc_sys: Path
    """Where sysctls are read and written: the /proc/sys of a container without `privileged` is read-only."""
    dev: Path
    """The host's device nodes. They are looked at, never opened."""
    var_run: Path
    run: Path
    var_lib_kubelet: Path
    hook_config: Path
    """Directory in which hook servers register (spec 03 §1.1, last rows)."""
    host_mode: bool

    @classmethod
    def host(cls) -> Roots:
        return cls(
            cgroup=Path("/sys/fs/cgroup"),
            sys=Path("/sys"),
            sys_fs=Path("/sys/fs"),
            proc=Path("/proc"),
            proc_sys=Path("/proc/sys"),
            dev=Path("/dev"),
            var_run=Path("/var/run"),
            run=Path("/run"),
            var_lib_kubelet=Path("/var/lib/kubelet"),
            hook_config=Path("/etc/runtime/hookserver.d"),
            host_mode=True,
        )

    @classmethod
    def daemonset(cls) -> Roots:
        return cls(
            cgroup=Path("/host-cgroup"),
            sys=Path("/host-sys"),
            sys_fs=Path("/host-sys-fs"),
            proc=Path("/proc"),
            proc_sys=Path("/proc/sys"),
            dev=Path("/dev"),
            var_run=Path("/host-var-run"),
            run=Path("/host-run"),
            var_lib_kubelet=Path("/var/lib/kubelet"),
            hook_config=Path("/host-etc-hookserver"),
            host_mode=False,
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Roots:
        """The set that `agent_mode` selects; `env` defaults to the process environment."""
        mode = (os.environ if env is None else env).get(AGENT_MODE_ENV, "")
        return cls.host() if mode == HOST_MODE else cls.daemonset()

    @property
    def resctrl(self) -> Path:
        return self.sys_fs / "resctrl"

    @property
    def terway_qos(self) -> Path:
        """Directory in which Terway expects bandwidths: below `/var/lib`, in a DaemonSet `/host-var-lib`."""
        base = self.var_run.with_name("lib" if self.host_mode else "host-var-lib")
        return base / "terway/qos"
