"""The objects that install koordlet: account, rights, DaemonSet (spec 02 §1.1, 03 §1.1). Data; no I/O except writing
deploy/.

    python -m control.ctl.manifests.koordlet --out deploy/koordlet           write them
    python -m control.ctl.manifests.koordlet --out deploy/koordlet --check   exit 1 if they differ
    python -m control.ctl.manifests.koordlet --rights --out deploy/koordlet-rights   the same for optional rights

`rules` grants exactly what koordlet uses: a test runs the process with these rights and fails on a refusal and on an
unused verb. `koordctl up` narrows them to its one node. The namespace is in deploy/manager.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.manifestfiles import HostPath, ManifestFolder, Object, OptionalRights, Purpose, purpose, rule, rules_of
from koordlet.system.capabilities import CAPABILITIES

ACCOUNT = "koordlet"
PORT = 9316
KUBELET_PATHS = ("nodes/pods", "nodes/configz")
"""Subresources that a kubelet of Kubernetes 1.33 or newer checks for /pods and /configz (see `olderkubelets`)."""

_MODULE = "control.ctl.manifests.koordlet"


def rules(node: str = "") -> list[Object]:
    """The rules of the ClusterRole."""
    return rules_of(purposes(node))


def purposes(node: str = "") -> list[Purpose]:
    """The rules with what they are for; with `node`, writes are restricted to objects of that name, which a
    DaemonSet's role cannot do."""
    own = [node] if node else None
    return [
        purpose(
            "this node's objects: informers for one name each",
            rule("", ["nodes"], ["list", "watch"]),
            rule("slo.koordinator.sh", ["nodeslos", "nodemetrics"], ["list", "watch"]),
        ),
        purpose(
            "reports; on the Node, the condition about NodeSLO fields that are not in force",
            rule("slo.koordinator.sh", ["nodemetrics/status"], ["patch"], own),
            rule("", ["nodes/status"], ["patch"], own),
            rule("topology.node.k8s.io", ["noderesourcetopologies"], ["list", "watch", "create"]),
            rule("topology.node.k8s.io", ["noderesourcetopologies"], ["get", "patch"], own),
            rule("scheduling.koordinator.sh", ["devices"], ["list", "watch", "create"]),
            rule("scheduling.koordinator.sh", ["devices"], ["get", "patch"], own),
        ),
        purpose(
            "pods come from the kubelet, which checks these rights at the API server",
            rule("", list(KUBELET_PATHS), ["get"], own),
        ),
        purpose(
            "gate BlkIOReconcile: the volume of a claim that a pod's disk limits name",
            rule("", ["persistentvolumeclaims"], ["get"]),
        ),
        purpose(
            "events about pods, and evictions within disruption budgets",
            rule("", ["events"], ["create", "patch"]),
            rule("", ["pods/eviction"], ["create"]),
        ),
        purpose(
            "callers of the pages; those of `koordctl up` are only on its machine",
            *(() if node else manifestfiles.REVIEW_RULES),
        ),
    ]


RIGHTS = (
    OptionalRights(
        "resource-slices",
        "resourceSlices",
        (
            purpose(
                "gate ResourceSlices: the devices of this node for resource claims",
                rule("resource.k8s.io", ["resourceslices"], ["list", "watch", "create", "patch", "delete"]),
            ),
        ),
    ),
)


def rbac(node: str = "") -> list[Object]:
    """Account, role and binding."""
    return manifestfiles.rbac(ACCOUNT, rules(node))


_HOST_PATHS = (
    HostPath("cgroup", "/sys/fs/cgroup", "/host-cgroup"),
    HostPath("sys", "/sys", "/host-sys"),
    # the node's bpf and resctrl mounts appear here
    HostPath("sys-fs", "/sys/fs", "/host-sys-fs", propagation="HostToContainer"),
    # /proc/sys of a container is read-only
    HostPath("proc-sys", "/proc/sys", "/host-proc-sys"),
    HostPath("dev", "/dev", "/host-dev", read_only=True),
    HostPath("var-run", "/var/run", "/host-var-run"),
    HostPath("run", "/run", "/host-run"),
    HostPath("kubelet", "/var/lib/kubelet", "/var/lib/kubelet", propagation="HostToContainer"),
    HostPath("hookserver", "/etc/runtime/hookserver.d", "/host-etc-hookserver", "DirectoryOrCreate"),
    HostPath("var-run-koordlet", "/var/run/koordlet", "/host-var-run-koordlet", "DirectoryOrCreate"),
    HostPath("vgpu", "/usr/local/vgpu", "/usr/local/vgpu", "DirectoryOrCreate"),
    HostPath("terway-qos", "/var/lib/terway/qos", "/host-var-lib/terway/qos", "DirectoryOrCreate"),
    HostPath("state", "/var/lib/koordlet", "/var/lib/koordlet", "DirectoryOrCreate"),
    HostPath("log", "/var/log/koordlet", "/var/log/koordlet", "DirectoryOrCreate"),
)


CONFINED: Object = {
    "runAsUser": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"], "add": [each.name for each in CAPABILITIES]},
    "seccompProfile": {"type": "RuntimeDefault"},
    "seLinuxOptions": {"type": "spc_t"},
}
"""The securityContext: capabilities instead of `privileged`. The SELinux type is that of privileged containers: others
are kept from the node's files. It has no effect on nodes without SELinux."""
UNCONFINED_APPARMOR = {f"container.apparmor.security.beta.kubernetes.io/{ACCOUNT}": "unconfined"}
"""AppArmor's default profile for containers refuses mounts and other processes' /proc entries. The annotation is for
all versions of Kubernetes; the field `appArmorProfile` exists since 1.30, and the API server sets it."""


def daemonset() -> list[Object]:
    """The DaemonSet, for every Linux node."""
    probe = {"port": PORT, "host": "127.0.0.1", "scheme": "HTTPS"}
    container: Object = {
        "name": ACCOUNT,
        "image": manifestfiles.NODE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["koordlet"],
        "args": [
            f"--addr=:{PORT}",
            "--proc-sys-root-dir=/host-proc-sys",
            "--dev-root-dir=/host-dev",
            "--bpf-pin-dir=/host-sys-fs/bpf/koordlet",
            "--state-dir=/host-var-run-koordlet",
            "--pod-resources-proxy-path=/host-var-run-koordlet/pod-resources",
            "--xpu-device-infos-dir=/host-var-run-koordlet/xpu-device-infos",
            "--prediction-checkpoint-filepath=/var/lib/koordlet/prediction-checkpoints",
            "--feature-gates=",
            "--v=2",
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "ports": [{"name": "metrics", "containerPort": PORT, "hostPort": PORT, "protocol": "TCP"}],
        **manifestfiles.probes(probe, "/readyz"),
        # docs/install.md: the BPF maps of a node with 64 CPUs count as memory of this container
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": CONFINED,
    }
    return manifestfiles.daemonset(
        container,
        _HOST_PATHS,
        spec={
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}},
            "minReadySeconds": 10,
        },
        # kernel settings are restored at the end, parents after children
        pod={"serviceAccountName": ACCOUNT, "terminationGracePeriodSeconds": 30},
        annotations=UNCONFINED_APPARMOR,
    )


FILES = {"rbac.yaml": rbac, "daemonset.yaml": daemonset}
FOLDER = ManifestFolder(_MODULE, ACCOUNT, FILES, RIGHTS)
texts, rights_texts = FOLDER.texts, FOLDER.rights_texts


if __name__ == "__main__":
    sys.exit(FOLDER.main())
