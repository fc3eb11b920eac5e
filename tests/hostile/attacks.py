"""The attackers of the threat model (docs/security.md). Each repeats its attack until it is cancelled.

An attempt that must be refused is counted in `AttackTally.refused`, and in `gained` if it was not. What has to be
bounded and not refused (annotations that tenants may set, connections) is counted in `made` where it was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from koordlet.api import names
from tests.hostile.node import (
    ATTACKER,
    CONFIGMAP,
    FOREIGN_NODE,
    MARK,
    MERGE,
    SERVICE,
    TENANT,
    VICTIM,
    Api,
    AttackedNode,
)
from tests.scale.bench_hostile_pod import hostile_annotations

POD = f"/api/v1/namespaces/{TENANT}/pods/{ATTACKER}"
NOBODY = 65534
PAUSE_S = 0.2
"""Between attempts: the attackers are to disturb the node by what they send, not to measure the API server."""
CONNECTIONS = 150
"""Silent connections per port."""
LARGE_BODY = b"x" * (8 << 20)
YAML = "application/yaml"
TRUSTED: dict[str, dict[str, dict[str, str]]] = {
    "annotations": {  # other values than FORGED: unchanged keys are never refused
        "resource-status": {names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0"}'},
        "device-allocated": {names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"resources":{}}]}'},
        "OOM score": {names.ANNOTATION_OOM_SCORE_ADJ: "-999"},
        "eviction policy": {names.ANNOTATION_EVICTION_POLICY: '["other"]'},
        "resctrl": {names.ANNOTATION_RESCTRL: "{}"},
    },
    "labels": {
        "class LSE": {names.LABEL_QOS_CLASS: "LSE"},
        "class SYSTEM": {names.LABEL_QOS_CLASS: "SYSTEM"},
        "no hooks": {names.LABEL_SKIP_HOOK_SERVER: "true"},
        "no core scheduling": {names.LABEL_CORE_SCHED_POLICY: "none"},
    },
}
FORGED = {
    names.ANNOTATION_RESOURCE_STATUS: '{"cpuset":"0","numaNodeResources":[{"node":0,"resources":{"cpu":"1e30"}}]}',
    names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[{"minor":0}],"rdma":[{"extension":{"vfs":[{"busID":"../x"}]}}]}',
    names.ANNOTATION_OOM_SCORE_ADJ: "-1000",
    names.ANNOTATION_EVICTION_POLICY: '["none"]',
}
"""As if the webhook had not been called: written by an administrator in the tenant's place."""
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(8)
)
SECOND = (
    "import os, socket, sys\n"
    "gained = []\n"
    "for path in sys.argv[1:]:\n"
    "    for name, attempt in (('unlink', lambda: os.unlink(path)), ('rename', lambda: os.rename(path, path + '.x')),\n"
    "                          ('connect', lambda: socket.socket(socket.AF_UNIX).connect(path)),\n"
    "                          ('bind', lambda: socket.socket(socket.AF_UNIX).bind(path)),\n"
    "                          ('open', lambda: open(path, 'rb'))):\n"
    "        try: attempt(); gained.append(name + ' ' + path)\n"
    "        except OSError: pass\n"
    "print('\\n'.join(gained))\n"
)
"""Run by a process of a tenant on the node."""


@dataclass
class AttackTally:
    """What one attacker did."""

    succeeded: int = 0
    refused: int = 0
    gained: list[str] = field(default_factory=list)

    def count(self, status: int) -> None:
        """Count an attempt that a server may accept, because it is bounded or has no effect."""
        if 200 <= status < 300:
            self.succeeded += 1
        else:
            self.refused += 1

    def expect_refusal(self, status: int, what: str) -> None:
        """Count an attempt that no server may accept; status 0 (no answer) is no gain either."""
        if 200 <= status < 300:
            self.gained.append(what)
        else:
            self.refused += 1


Attack = Callable[[AttackedNode, AttackTally], Coroutine[Any, Any, None]]


async def annotation_churn(node: AttackedNode, tally: AttackTally) -> None:
    """Annotations of maximal size that change all the time, with the keys that tenants may set."""
    keys = (names.ANNOTATION_NETWORK_QOS, names.ANNOTATION_BLKIO_QOS)
    for number in itertools.count():
        texts = {key: text for key, text in hostile_annotations(number).items() if key in keys or "/" not in key}
        answer = await node.tenant.call("PATCH", POD, {"metadata": {"annotations": texts}}, MERGE)
        tally.count(answer.status)
        gone: dict[str, None] = dict.fromkeys(texts)
        await node.tenant.call("PATCH", POD, {"metadata": {"annotations": gone}}, MERGE)
        await asyncio.sleep(PAUSE_S)


async def log_bomb(node: AttackedNode, tally: AttackTally) -> None:
    """Malformed settings that are new each time, with control characters of terminals."""
    for number in itertools.count():
        text = json.dumps({"ingressLimit": f"\x1b]52;c;{number}\x07" + "x" * 3000})
        body = {"metadata": {"annotations": {names.ANNOTATION_NETWORK_QOS: text, names.ANNOTATION_CPU_BURST: text}}}
        tally.count((await node.tenant.call("PATCH", POD, body, MERGE)).status)
        await asyncio.sleep(PAUSE_S)


async def odd_pods(node: AttackedNode, tally: AttackTally) -> None:
    """Pods with odd names, labels and containers, created and deleted; other pods' names in a kubelet's directory."""
    base = f"/api/v1/namespaces/{TENANT}/pods"
    for number in itertools.count():
        labels = {f"l{index}": "v" * 63 for index in range(300)}
        container = {"name": "c", "image": "localhost/process:none", "command": ["sleep", "1"]}
        pod = {
            "metadata": {"name": f"odd-{number}", "labels": labels, "uid": "../../x"},
            "spec": {"containers": [{**container, "name": f"c{index}"} for index in range(20)]},
        }
        tally.count((await node.tenant.call("POST", base, pod)).status)
        await node.tenant.call("DELETE", f"{base}/odd-{number}?gracePeriodSeconds=0")
        await asyncio.sleep(5 * PAUSE_S)


async def trusted_keys(node: AttackedNode, tally: AttackTally) -> None:
    """A tenant sets what only the scheduler or an administrator may set."""
    while True:
        for kind, cases in TRUSTED.items():
            for what, values in cases.items():
                body = {"metadata": {kind: values}}
                answer = await node.tenant.call("PATCH", POD, body, MERGE)
                tally.expect_refusal(answer.status, f"{kind}: {what}")
                await asyncio.sleep(PAUSE_S)


async def without_webhook(node: AttackedNode, tally: AttackTally) -> None:
    """The same keys in force, as if the webhook had failed: koordlet itself must grant nothing."""
    for number in itertools.count():
        values = {**FORGED, "number": str(number)}
        answer = await node.admin.call("PATCH", POD, {"metadata": {"annotations": values}}, MERGE)
        tally.count(answer.status)
        await asyncio.sleep(5 * PAUSE_S)


async def foreign_rights(node: AttackedNode, tally: AttackTally) -> None:
    """A tenant and a compromised koordlet write and read what belongs to others."""
    mark = {"metadata": {"labels": {"mark": MARK}}}
    pod = {"metadata": {"name": MARK}, "spec": {"hostPID": True, "containers": [{"name": "c", "image": "i"}]}}
    slo = "/apis/slo.koordinator.sh/v1alpha1"
    writes: list[tuple[str, str, Any, str]] = [
        ("PATCH", f"/api/v1/nodes/{FOREIGN_NODE}/status", mark, MERGE),
        ("PATCH", f"/api/v1/nodes/{FOREIGN_NODE}", mark, MERGE),
        ("PATCH", f"{slo}/nodemetrics/{FOREIGN_NODE}/status", {**mark, "status": {"updateTime": None}}, MERGE),
        ("PATCH", f"{slo}/nodeslos/{node.settings.node_name}", {"spec": {MARK: 1}}, MERGE),
        ("GET", f"/api/v1/namespaces/{VICTIM}/secrets/secret", None, ""),
        ("GET", "/api/v1/secrets", None, ""),
        ("GET", f"/api/v1/watch/namespaces/{VICTIM}/secrets/secret", None, ""),
        ("GET", f"/api/v1/nodes/{node.settings.node_name}/proxy/pods", None, ""),
        ("POST", "/api/v1/namespaces/kube-system/pods", pod, "application/json"),
        (
            "PATCH",
            f"/api/v1/namespaces/kube-system/pods/{MARK}?fieldManager=a",
            pod,
            "application/apply-patch+yaml",
        ),
        ("PATCH", CONFIGMAP, {"data": {"resource-threshold-config": MARK}}, MERGE),
        ("DELETE", f"/api/v1/namespaces/{VICTIM}/pods/{SERVICE}", None, ""),
    ]
    binding = {
        "metadata": {"name": MARK},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": MARK}],
    }
    writes.append(("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding, "application/json"))
    while True:
        for who, api in (("koordlet", node.koordlet), ("tenant", node.tenant)):
            for method, path, body, kind in writes:
                answer = await api.call(method, path, body, kind)
                tally.expect_refusal(answer.status, f"{who}: {method} {path}")
            impersonation = Api(api.session, api.url, api.tls, {**api.headers, "Impersonate-Group": "system:masters"})
            tally.expect_refusal((await impersonation.call("GET", "/api/v1/secrets")).status, f"{who}: impersonation")
            await asyncio.sleep(PAUSE_S)


async def bombs(node: AttackedNode, tally: AttackTally) -> None:
    """Bodies that grow when they are read, from an account without rights, and large ones from strangers."""
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    # A new key for each copy: the second copy to one key would replace the first, and the size would only add up.
    doubled = json.dumps([{"op": "copy", "from": "/metadata", "path": f"/metadata/x{n}"} for n in range(40)]).encode()
    while True:
        tally.expect_refusal((await node.tenant.call("POST", review, BOMB, YAML)).status, "a bomb of aliases")
        patched = await node.tenant.call("PATCH", POD, doubled, "application/json-patch+json")
        tally.expect_refusal(patched.status, "a patch that doubles")
        for url, path in _endpoints(node):
            tally.expect_refusal((await node.anonymous(url).call("POST", path, LARGE_BODY)).status, f"{url}{path}")
        await asyncio.sleep(5 * PAUSE_S)


def _endpoints(node: AttackedNode) -> list[tuple[str, str]]:
    settings = node.settings
    return [
        (node.url(settings.webhook_port, "https"), "/validate-pod"),
        (node.url(settings.koordlet_port), "/metrics"),
        (node.url(settings.manager_port), "/metrics"),
        (node.url(settings.scheduler_port), "/metrics"),
        (node.url(settings.kubelet_port, "https"), "/pods"),
        (node.admin.url, "/api/v1/namespaces"),
    ]


async def strangers(node: AttackedNode, tally: AttackTally) -> None:
    """A neighbour on the network asks for what needs credentials."""
    settings = node.settings
    requests = [
        (node.admin.url, "GET", "/api/v1/secrets"),
        (node.admin.url, "GET", "/api/v1/nodes"),
        (node.url(settings.kubelet_port, "https"), "GET", "/pods"),
        (node.url(settings.koordlet_port), "GET", "/debug/pprof/profile?seconds=60"),
        (node.url(settings.manager_port), "GET", "/debug/pprof/profile?seconds=60"),
    ]
    while True:
        for url, method, path in requests:
            tally.expect_refusal((await node.anonymous(url).call(method, path)).status, f"{url}{path}")
        await asyncio.sleep(PAUSE_S)


async def silent_connections(node: AttackedNode, tally: AttackTally) -> None:
    """Connections to every port that send a byte now and then, and are opened again when they are closed."""
    settings = node.settings
    ports = [
        settings.apiserver_port, settings.kubelet_port, settings.koordlet_port, settings.manager_port,
        settings.webhook_port, settings.scheduler_port,
    ]  # fmt: skip

    async def hold(port: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                tally.succeeded += 1
                try:
                    writer.write(b"GET / HTTP/1.1\r\n")
                    while not reader.at_eof():
                        writer.write(b"X")
                        await writer.drain()
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(64), 5.0)
                finally:
                    writer.close()
            await asyncio.sleep(1.0)

    await asyncio.gather(*(hold(port) for port in ports for _ in range(CONNECTIONS)))


async def socket_thief(node: AttackedNode, tally: AttackTally) -> None:
    """A process of another user on the node takes sockets and reads credentials; a second koordlet starts."""
    root = node.state_dir
    sockets = [str(root / "koordlet/hooks.sock"), str(root / "koordlet/lock"), str(node.layout.admin_kubeconfig)]
    sockets += [str(path) for path in (root / "kubeconfig").glob("*.token")]
    thief = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-S", "-c", SECOND]
    second = [
        sys.executable, "-m", "koordlet", f"--kubeconfig={node.layout.kubeconfig('koordlet')}",
        f"--node-name={node.settings.node_name}", f"--state-dir={root / 'koordlet'}", "--addr=127.0.0.1:0",
        f"--runtime-hooks-addr={root / 'koordlet/hooks.sock'}",
    ]  # fmt: skip
    while True:
        done = await asyncio.to_thread(subprocess.run, [*thief, *sockets], capture_output=True, text=True, check=False)
        tally.gained += [line for line in done.stdout.splitlines() if line]
        tally.refused += 5 * len(sockets) if not done.stdout.strip() else 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = await asyncio.to_thread(subprocess.run, second, capture_output=True, timeout=60, check=False)
            tally.expect_refusal(200 if ended.returncode == 0 else 0, "a second koordlet ran")
        await asyncio.sleep(25 * PAUSE_S)


async def extreme_policies(node: AttackedNode, tally: AttackTally) -> None:
    """A writer of the ConfigMap and of NodeSLO: extreme numbers, and paths out of the cgroup tree."""
    outside = "../" * 12 + str(node.sentinel).lstrip("/")
    place = {"base": "CgroupRoot", "parentDir": outside, "relativePath": ".."}
    apps = [{"name": "x", "qos": "LS", "cgroupPath": place}]
    specs = [
        {"hostApplications": apps},
        {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 10**9}},
        {"cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": -(2**62)}},
        {"resourceQOSStrategy": {"lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 2**62}}}},
    ]
    path = f"/apis/slo.koordinator.sh/v1alpha1/nodeslos/{node.settings.node_name}"
    data = {"resource-threshold-config": json.dumps({"clusterStrategy": {"cpuSuppressThresholdPercent": 10**30}})}
    while True:
        for spec in specs:
            tally.count((await node.admin.call("PATCH", path, {"spec": spec}, MERGE)).status)
            await asyncio.sleep(2 * PAUSE_S)
        tally.count((await node.admin.call("PATCH", CONFIGMAP, {"data": data}, MERGE)).status)


ATTACKS: dict[str, Attack] = {
    "tenant: annotation churn": annotation_churn,
    "tenant: log bomb": log_bomb,
    "tenant: odd pods": odd_pods,
    "tenant: trusted keys": trusted_keys,
    "tenant: forged allocations past the webhook": without_webhook,
    "tenant, compromised koordlet: objects of others": foreign_rights,
    "anyone: bombs and large bodies": bombs,
    "neighbour: requests without credentials": strangers,
    "neighbour: silent connections": silent_connections,
    "tenant on the node: sockets, second koordlet": socket_thief,
    "writer of policies: extreme values": extreme_policies,
}
