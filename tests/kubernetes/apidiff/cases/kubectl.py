"""kubectl's verbs as command lines, in order, for the differential test of kubectl's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NS = "kubectl"


@dataclass(frozen=True, slots=True)
class Command:
    """Arguments of kubectl. `known`: why the two servers' outputs differ; then they must."""

    args: str
    stdin: Any = None
    known: str = ""


def deployment(image: str = "i:1", **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template, **spec},
    }


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "q", "labels": {"app": "q"}},
    "spec": {
        "containers": [
            {"name": "a", "image": "i", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "b", "image": "i", "env": [{"name": "X", "value": "y"}], "ports": [{"containerPort": 80}]},
        ],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
    },
}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kubectl-n", "labels": {"l": "m"}},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}  # fmt: skip
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "f"}, "data": {"k": "1"}}

INVALID = "a patch to an invalid object gets the answer of the same PUT"
COMMANDS = [
    Command("create configmap c --from-literal=a=b --from-literal=c=d"),
    Command("create configmap c --from-literal=a=b"),
    Command("get configmap c -o yaml"),
    Command("get configmap c -o jsonpath={.data.a}"),
    Command("describe configmap c"),
    Command("label configmap c x=y"),
    Command("label configmap c x=z"),
    Command("annotate configmap c n=o"),
    Command("patch configmap c --type=merge -p {\"data\":{\"a\":null}}"),
    Command(
        'patch configmap c --type=json -p [{"op":"remove","path":"/data/none"}]',
        known="a refused patch says which operation failed",
    ),
    Command("patch configmap c -p {\"data\":{\"a\":7}}", known=INVALID),
    Command("get configmap none"),
    Command("get nothings"),
    Command("get configmaps -l x=y --show-labels"),
    Command("get configmaps --field-selector=spec.x=y"),
    Command("delete configmap c none"),
    Command("apply -f -", CONFIG),
    Command("apply -f -", {**CONFIG, "data": {"k": "2", "l": "3"}}),
    Command("apply -f -", {**CONFIG, "data": {"l": "3"}}),
    Command("apply --server-side -f -", {**CONFIG, "data": {"l": "4"}}),
    Command("apply --server-side --force-conflicts -f -", {**CONFIG, "data": {"l": "4"}}),
    Command(
        "get configmap f -o yaml --show-managed-fields",
        known="kube-apiserver itself updates kubectl's annotation of the last applied configuration",
    ),
    Command("apply --dry-run=server -f -", {**CONFIG, "data": {"m": "5"}}),
    Command("diff -f -", {**CONFIG, "data": {"l": "6"}}),
    Command("replace -f -", {**CONFIG, "data": {"n": "7"}}),
    Command("apply -f -", {**CONFIG, "dat": {}}, known=INVALID),
    Command("apply -f -", {**CONFIG, "data": {"a": {}}}, known=INVALID),
    Command("create -f -", deployment()),
    Command("get deployment d -o wide"),
    Command("get deployment d -o yaml"),
    Command("describe deployment d"),
    Command("apply -f -", deployment("i:2")),
    Command("set image deployment/d c=i:3"),
    Command("set env deployment/d A=b"),
    Command("set resources deployment/d --limits=cpu=1"),
    Command("scale deployment/d --replicas=5"),
    Command("scale deployment/d --replicas=6 --current-replicas=2"),
    Command("rollout pause deployment/d"),
    Command("rollout resume deployment/d"),
    Command("rollout history deployment/d"),
    Command("autoscale deployment/d --min=1 --max=3"),
    Command("expose deployment/d --port=80 --cluster-ip=None"),
    Command("get service d -o yaml", known="Services get no cluster IP and no IP families"),
    Command("describe service d", known="Services get no cluster IP and no IP families"),
    Command("get all"),
    Command("create -f -", deployment(selector={"matchLabels": {"app": "x"}})),
    Command("run r --image=i --restart=Never -- sh -c true"),
    Command("create -f -", POD),
    Command("get pods -o wide"),
    Command("get pod q -o yaml"),
    Command("describe pod q"),
    Command("get pods --sort-by=.metadata.name -o custom-columns=N:.metadata.name,I:.spec.containers[*].image"),
    Command("exec q -c none -- true"),
    Command("exec q -- true"),
    Command("attach q -c a"),
    Command("port-forward q 80"),
    Command("cp q:/x /tmp/none -c a"),
    Command("set image pod/q a=j"),
    Command("delete pod q --grace-period=0 --force --wait=false"),
    Command("delete pods --all --wait=false"),
    Command("wait --for=delete pod/r --timeout=5s"),
    Command("wait --for=condition=Available deployment/d --timeout=0s"),
    Command("create -f -", NODE),
    Command("get node kubectl-n --show-labels"),
    Command("cordon kubectl-n"),
    Command("taint node kubectl-n b=c:NoExecute"),
    Command("describe node kubectl-n", known="a new node is not tainted not-ready"),
    Command("drain kubectl-n --ignore-daemonsets"),
    Command("uncordon kubectl-n"),
    Command("delete node kubectl-n"),
    Command("create secret generic s --from-literal=u=v"),
    Command("describe secret s"),
    Command("create secret docker-registry r --docker-server=x --docker-username=u --docker-password=p"),
    Command("get secrets"),
    Command("create role r --verb=get,list --resource=pods,deployments.apps"),
    Command("create rolebinding r --role=r --user=jane"),
    Command("describe rolebinding r"),
    Command("auth can-i list pods --as=jane"),
    Command("auth can-i delete pods --as=jane"),
    Command("get pods --as=jane"),
    Command("get secrets --as=jane"),
    Command("auth whoami"),
    Command("create quota q --hard=pods=3"),
    Command("describe quota q"),
    Command("create priorityclass kubectl-p --value=7 --description=d"),
    Command("create poddisruptionbudget b --selector=app=d --min-available=1"),
    Command("get poddisruptionbudget b"),
    Command("create job j --image=i"),
    Command("get job j"),
    Command("create cronjob k --image=i --schedule=61_*_*_*_*", known="schedules are not parsed: nothing reads them"),
    Command("create ingress g --rule=a.io/*=d:80"),
    Command("describe ingress g"),
    Command("create serviceaccount x"),
    Command("create token none"),
    Command("get events"),
    Command("explain pod.spec.containers.resources", known="OpenAPI has the types and texts of the Python client"),
    Command("explain deployment.none"),
    Command("top pod"),
    Command("delete deployment,service,hpa --all"),
    Command("get deployments,services,hpa"),
]  # fmt: skip
