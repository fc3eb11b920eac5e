"""The unmodified kubectl with the server: common commands."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.kubectl

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: busybox, command: [sleep, "60"], resources: {requests: {cpu: 100m}}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {containers: [{name: main, image: busybox, env: [{name: A, value: "1"}]}]}
"""


async def test_version_and_cluster_info(kubectl: Any) -> None:
    assert re.search(r"Server Version: v1\.\d+\.\d+\+koord-standalone", await kubectl("version"))
    assert "is running at" in await kubectl("cluster-info")


async def test_api_resources_and_versions(kubectl: Any) -> None:
    listed = await kubectl("api-resources")
    for line in (
        r"pods +po +v1 +true +Pod", r"deployments +deploy +apps/v1 +true +Deployment",
        r"nodes +no +v1 +false +Node", r"poddisruptionbudgets +pdb +policy/v1 +true",
    ):  # fmt: skip
        assert re.search(line, listed), line
    assert "apps/v1\n" in await kubectl("api-versions")


async def test_get_prints_tables_and_wide_tables(ready: Any) -> None:
    await ready("create", "-f", "-", input=POD)
    plain = await ready("get", "pods")
    assert plain.split() == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "web",
        "0/1",
        "Pending",
        "0",
        plain.split()[-1],
    ]
    assert "NOMINATED NODE" in await ready("get", "pods", "-o", "wide")
    assert (await ready("get", "pods", "-l", "app=web", "-o", "name")).strip() == "pod/web"
    assert (await ready("get", "pods", "-l", "app!=web", "-o", "name")).strip() == ""
    assert (await ready("get", "pods", "--field-selector", "status.phase=Pending", "-o", "name")).strip() == "pod/web"
    assert (await ready("get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image}")) == "busybox"
    assert "LABELS" in await ready("get", "pods", "--show-labels")
    assert "pod/web" in await ready("get", "all")
    everything = await ready("get", "pods,services", "-A")
    assert "service/kubernetes" in everything
    assert 'pods "none" not found' in await ready("get", "pod", "none", fails=True)
    assert "the server doesn't have a resource type" in await ready("get", "nonsense", fails=True)


async def test_describe(ready: Any) -> None:
    await ready("create", "-f", "-", input=POD)
    text = await ready("describe", "pod", "web")
    assert re.search(r"Name: +web", text)
    assert re.search(r"QoS Class: +Burstable", text)
    assert "Name:         default" in await ready("describe", "namespace", "default")


async def test_explain(kubectl: Any) -> None:
    assert "spec\t<PodSpec>" in await kubectl("explain", "pod")
    assert "FIELD: nodeName <string>" in await kubectl("explain", "pods.spec.nodeName")
    assert "replicas\t<integer>" in await kubectl("explain", "deployments.spec", "--recursive")


async def test_apply_three_way_merge(ready: Any) -> None:
    assert "created" in await ready("apply", "-f", "-", input=DEPLOYMENT)
    assert "unchanged" in await ready("apply", "-f", "-", input=DEPLOYMENT)
    await ready("scale", "deployment/shop", "--replicas=5")
    changed = DEPLOYMENT.replace('env: [{name: A, value: "1"}]', 'env: [{name: B, value: "2"}]').replace(
        "  replicas: 2\n", ""
    )
    diff = await ready("diff", "-f", "-", input=changed, fails=True)
    assert "+        - name: B" in diff
    assert "configured" in await ready("apply", "-f", "-", input=changed)
    live = json.loads(await ready("get", "deployment", "shop", "-o", "json"))
    assert live["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "2"}]
    assert "Warning" not in await ready("apply", "-f", "-", "--dry-run=server", input=changed)
    refused = await ready("apply", "-f", "-", input=DEPLOYMENT.replace("replicas: 2", "replicaz: 2"), fails=True)
    assert 'unknown field "spec.replicaz"' in refused


async def test_server_side_apply(ready: Any) -> None:
    ours = ["apply", "--server-side", "--field-manager=ours", "-f", "-"]
    theirs = ["apply", "--server-side", "--field-manager=theirs", "-f", "-"]
    assert "serverside-applied" in await ready(*ours, input=DEPLOYMENT)
    other = DEPLOYMENT.replace("replicas: 2", "replicas: 3")
    conflict = await ready(*theirs, input=other, fails=True)
    assert 'conflict with "ours": .spec.replicas' in conflict
    await ready(*theirs, "--force-conflicts", input=other)
    live = json.loads(await ready("get", "deployment", "shop", "-o", "json", "--show-managed-fields"))
    assert live["spec"]["replicas"] == 3
    assert {m["manager"] for m in live["metadata"]["managedFields"]} >= {"ours", "theirs"}


async def test_patch_label_annotate(ready: Any) -> None:
    await ready("apply", "-f", "-", input=DEPLOYMENT)
    await ready("patch", "deploy", "shop", "-p", '{"spec":{"replicas":4}}')
    await ready("patch", "deploy", "shop", "--type=merge", "-p", '{"spec":{"paused":true}}')
    await ready(
        "patch", "deploy", "shop", "--type=json", "-p", '[{"op":"add","path":"/spec/minReadySeconds","value":7}]'
    )
    await ready("label", "deploy", "shop", "tier=gold")
    assert "already has a value" in await ready("label", "deploy", "shop", "tier=iron", fails=True)
    await ready("label", "deploy", "shop", "tier=iron", "--overwrite")
    await ready("annotate", "deploy", "shop", "note=hello world")
    live = json.loads(await ready("get", "deploy", "shop", "-o", "json"))
    assert (live["spec"]["replicas"], live["spec"]["paused"], live["spec"]["minReadySeconds"]) == (4, True, 7)
    assert (live["metadata"]["labels"]["tier"], live["metadata"]["annotations"]["note"]) == ("iron", "hello world")
    await ready("label", "deploy", "shop", "tier-")
    await ready("set", "image", "deploy/shop", "main=busybox:2")
    assert (
        await ready("get", "deploy", "shop", "-o", "jsonpath={.spec.template.spec.containers[0].image}") == "busybox:2"
    )


async def test_edit_and_replace(ready: Any, tmp_path: Path) -> None:
    await ready("create", "configmap", "shop", "--from-literal=size=two")
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i 's/size: two/size: six/' \"$1\"\n")
    editor.chmod(0o755)
    assert "edited" in await ready("edit", "configmap", "shop", env={"EDITOR": str(editor)})
    live = await ready("get", "configmap", "shop", "-o", "yaml")
    assert "size: six" in live
    assert "replaced" in await ready("replace", "-f", "-", input=live.replace("size: six", "size: one"))
    assert "the object has been modified" in await ready("replace", "-f", "-", input=live, fails=True)


async def test_delete_waits_for_the_end(ready: Any) -> None:
    await ready("create", "-f", "-", input=POD)
    assert "deleted" in await ready("delete", "pod", "web", "--wait", "--timeout=90s")
    await ready("create", "configmap", "held", "--from-literal=a=b")
    await ready("patch", "cm", "held", "-p", '{"metadata":{"finalizers":["x.io/hold"]}}')
    waiting = await ready.start("delete", "configmap", "held", "--wait", "--timeout=90s")
    await asyncio.sleep(0.3)
    assert waiting.returncode is None
    await ready("patch", "cm", "held", "-p", '{"metadata":{"finalizers":null}}')
    await asyncio.wait_for(waiting.communicate(), 90)
    assert waiting.returncode == 0
    assert "not found" in await ready("get", "configmap", "held", fails=True)
    await ready("create", "namespace", "gone")
    await ready("create", "configmap", "inner", "-n", "gone")
    await ready("delete", "namespace", "gone", "--timeout=90s")
    assert "not found" in await ready("get", "configmap", "inner", "-n", "gone", fails=True)


async def test_wait_for_a_condition(ready: Any) -> None:
    await ready("create", "-f", "-", input=POD)
    waiting = await ready.start("wait", "--for=condition=Ready", "pod/web", "--timeout=90s")
    status = {
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    }
    await ready("patch", "pod", "web", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    out, err = await asyncio.wait_for(waiting.communicate(), 90)
    assert out.decode().strip() == "pod/web condition met", err
    jsonpath = await ready("wait", "--for=jsonpath={.status.phase}=Pending", "pod/web", "--timeout=90s")
    assert "condition met" in jsonpath
    gone = await ready.start("wait", "--for=delete", "pod/web", "--timeout=90s")
    await ready("delete", "pod", "web", "--wait=false")
    await asyncio.wait_for(gone.communicate(), 90)
    assert gone.returncode == 0


async def test_get_watch(ready: Any) -> None:
    watching = await ready.start("get", "configmaps", "-w", "--field-selector=metadata.name=seen", "-o", "name")
    table = await ready.start("get", "configmaps", "-w", "--field-selector=metadata.name=seen")
    await asyncio.sleep(0.5)
    await ready("create", "configmap", "seen", "--from-literal=a=b")
    first = await asyncio.wait_for(watching.stdout.readline(), 90)
    assert first.decode().strip() == "configmap/seen"
    header = (await asyncio.wait_for(table.stdout.readline(), 90)).decode().split()
    line = (await asyncio.wait_for(table.stdout.readline(), 90)).decode().split()
    assert (header, line[:2]) == (["NAME", "DATA", "AGE"], ["seen", "1"])
    for process in (watching, table):
        process.terminate()
        await process.communicate()


async def test_events(ready: Any) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Started",
        "message": "all well",
        "type": "Normal",
        "source": {"component": "test"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 3,
    }
    await ready("create", "-f", "-", input=json.dumps(event))
    assert "pod/web" in await ready("get", "events")
    assert "all well" in await ready("events")
    assert "all well" in await ready("get", "events.events.k8s.io", "e1", "-o", "jsonpath={.note}")


@pytest.mark.parametrize(
    ("create", "get"),
    [
        ("configmap c --from-literal=a=b", "configmap/c"),
        ("secret generic s --from-literal=a=b", "secret/s"),
        ("namespace n", "namespace/n"),
        ("serviceaccount sa", "serviceaccount/sa"),
        ("deployment d --image=busybox --replicas=2 --port=80", "deployment.apps/d"),
        ("job j --image=busybox -- true", "job.batch/j"),
        ("cronjob cj --image=busybox --schedule=@hourly -- true", "cronjob.batch/cj"),
        ("service clusterip svc --tcp=80:8080", "service/svc"),
        ("quota q --hard=pods=3", "resourcequota/q"),
        ("poddisruptionbudget p --selector=a=b --min-available=1", "poddisruptionbudget.policy/p"),
        ("priorityclass pc --value=100 --description=x", "priorityclass.scheduling.k8s.io/pc"),
        ("role r --verb=get,list --resource=pods", "role.rbac.authorization.k8s.io/r"),
        ("rolebinding rb --clusterrole=view --user=jane", "rolebinding.rbac.authorization.k8s.io/rb"),
        ("clusterrole cr --verb=get --resource=nodes", "clusterrole.rbac.authorization.k8s.io/cr"),
        ("clusterrolebinding crb --clusterrole=view --group=g", "clusterrolebinding.rbac.authorization.k8s.io/crb"),
        ("ingress i --rule=h/p=svc:80", "ingress.networking.k8s.io/i"),
    ],
    ids=lambda v: v.split()[0] if " " in v else None,
)  # fmt: skip
async def test_create_commands_which_send_protobuf(kubectl: Any, create: str, get: str) -> None:
    assert (await kubectl("create", "-o", "name", *create.split())).strip() == get
    assert (await kubectl("get", get, "-o", "name")).strip() == get


async def test_run_expose_and_autoscale(ready: Any) -> None:
    await ready("run", "box", "--image=busybox", "--labels=app=box", "--port=80")
    assert "exposed" in await ready("expose", "pod", "box", "--port=80")
    assert await ready("get", "service", "box", "-o", "jsonpath={.spec.selector.app}") == "box"
    await ready("apply", "-f", "-", input=DEPLOYMENT)
    await ready("autoscale", "deployment", "shop", "--max=3")
    assert "Deployment/shop" in await ready("get", "hpa")


async def test_auth(ready: Any) -> None:
    assert (await ready("auth", "can-i", "delete", "nodes")).strip() == "yes"
    assert "system:masters" in await ready("auth", "whoami")
    await ready("create", "serviceaccount", "reader")
    await ready("create", "rolebinding", "reads", "--clusterrole=view", "--serviceaccount=default:reader")
    as_reader = "--as=system:serviceaccount:default:reader"
    assert (await ready("auth", "can-i", "list", "pods", as_reader)).strip() == "yes"
    assert (await ready("auth", "can-i", "delete", "pods", as_reader, fails=True)).split() == ["no"]
    token = (await ready("create", "token", "reader")).strip()
    forbidden = await ready("--token", token, "delete", "pod", "x", fails=True)
    assert (
        'User "system:serviceaccount:default:reader" cannot delete resource "pods"' in forbidden
        or "Forbidden" in forbidden
    )
    assert "pods" in await ready("auth", "can-i", "--list", as_reader)
    await ready("auth", "reconcile", "-f", "-", input=await ready("get", "rolebinding", "reads", "-o", "yaml"))


async def test_cordon_taint_and_drain(ready: Any) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    await ready("create", "-f", "-", input=json.dumps(node))
    await ready("cordon", "n1")
    assert "SchedulingDisabled" in await ready("get", "node", "n1")
    await ready("taint", "node", "n1", "k=v:NoSchedule")
    pod = {**json.loads(await ready("create", "-f", "-", "--dry-run=client", "-o", "json", input=POD))}
    pod["spec"]["nodeName"] = "n1"
    await ready("create", "-f", "-", input=json.dumps(pod))
    drained = await ready("drain", "n1", "--force", "--disable-eviction=false", "--grace-period=0", "--timeout=90s")
    assert "node/n1 drained" in drained
    assert "not found" in await ready("get", "pod", "web", fails=True)
    await ready("uncordon", "n1")
    assert "SchedulingDisabled" not in await ready("get", "node", "n1")


async def test_raw_and_chunks(ready: Any) -> None:
    for i in range(5):
        await ready("create", "configmap", f"c{i}")
    listed = await ready("get", "configmaps", "--chunk-size=2", "-o", "name")
    assert listed.split() == [f"configmap/c{i}" for i in range(5)] + ["configmap/kube-root-ca.crt"]
    assert json.loads(await ready("get", "--raw", "/api/v1/namespaces/default"))["kind"] == "Namespace"
