"""koordlet under an AppArmor profile, for nodes that have AppArmor and on which the profile is loaded.

    python -m control.ctl.manifests.apparmor --out deploy/koordlet-apparmor           write it
    python -m control.ctl.manifests.apparmor --out deploy/koordlet-apparmor --check   exit 1 if it differs

It changes the annotation of deploy/koordlet. docs/security.md says what the profile refuses, and what koordlet lacks
with it. Data; no I/O except writing deploy/.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.ctl.manifests import koordlet
from control.manifestfiles import Object
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.system.capabilities import CAPABILITIES

_MODULE = "control.ctl.manifests.apparmor"
_PROFILE = koordlet.ACCOUNT
_ANNOTATION = f"container.apparmor.security.beta.kubernetes.io/{koordlet.ACCOUNT}"

RULES = """\
  network,
  # To its children only.
  signal send peer=koordlet,
  signal receive,
  # Processes of others are read and never changed.
  ptrace read,
  ptrace readby,

  # All of the image and of the node is readable, except Secrets and other volumes of pods below this path.
  /{,**} r,
  deny /var/lib/kubelet/pods/*/volumes/** rwklmx,
  # The image's programs and libraries; koordlet starts iptables.
  /{usr/,}{local/,}{bin,sbin,lib,lib64}/** mrix,
  /run/xtables.lock rwk,
  /dev/null w,
  /memfd:* rw,

  # Kernel settings. Below /sys/fs and /proc/sys: koordlet outside a container.
  /{host-cgroup,sys/fs/cgroup}/** w,
  # cgroup v1: a program that the kernel runs without confinement, and which devices may be opened.
  deny /{host-cgroup,sys/fs/cgroup}/{,**/}{release_agent,devices.allow,devices.deny} wl,
  /{host-sys-fs,sys/fs}/{bpf,resctrl}/{,**} w,
  mount fstype=bpf -> /{host-sys-fs,sys/fs}/bpf/,
  mount fstype=resctrl -> /{host-sys-fs,sys/fs}/resctrl/,
  umount /{host-sys-fs,sys/fs}/{bpf,resctrl}/,
  /{host-sys,sys}/kernel/mm/{kidled,memcg_reaper,pagecache_limit}/* w,
  /{host-sys,sys}/kernel/debug/sched_features w,
  /{host-proc-sys,proc/sys}/kernel/sched_{core,group_identity_enabled,idle_saver_wmark} w,
  /proc/[0-9]*/oom_score_adj w,

  # Its own files, and the sockets of the kubelet and of container runtimes.
  /{host-var-run-koordlet,var/lib/koordlet,var/log/koordlet}/{,**} rwk,
  /{host-etc-hookserver,host-var-lib/terway/qos}/{,**} rwk,
  # Not HAMi-core's library beside them, which containers load.
  /usr/local/vgpu/{vgpulock,containers}/{,**} rwk,
  /{host-run,host-var-run,var/lib/kubelet}/**.sock w,

  include if exists <local/koordlet>
"""


def profile() -> str:
    """The text for /etc/apparmor.d."""
    capabilities = "".join(f"  capability {each.name.lower()},\n" for each in CAPABILITIES)
    return f"profile {_PROFILE} flags=(attach_disconnected,mediate_deleted) {{\n{capabilities}{RULES}}}\n"


def patch() -> Object:
    """The strategic merge patch."""
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": koordlet.ACCOUNT, "namespace": KOORDINATOR_NAMESPACE},
        "spec": {"template": {"metadata": {"annotations": {_ANNOTATION: f"localhost/{_PROFILE}"}}}},
    }


def texts() -> dict[str, str]:
    """File name -> content."""
    overlay = manifestfiles.overlay(_MODULE, "../koordlet", patch())
    return {**overlay, _PROFILE: manifestfiles.written_by(_MODULE) + profile()}


if __name__ == "__main__":
    sys.exit(manifestfiles.main(sys.argv[1:], texts(), _MODULE))
