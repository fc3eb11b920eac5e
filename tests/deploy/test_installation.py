"""deploy/ and the Helm chart as a whole: images, labels, security, and that both say the same."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control import manifestfiles
from control.standalone.apiserver import ApiServer
from koordlet.version import VERSION
from scripts.install import chart, monitoring
from scripts.install.chartsettings import SETTINGS, Choice, Optional, Setting

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBECTL = Path(sys.executable).with_name("kubectl")
SELECTED = ("Deployment", "DaemonSet")
FOLDERS = (
    "manager", "manager-rights", "scheduler", "scheduler-rights", "descheduler", "descheduler-rights", "koordlet",
    "koordlet-rights", "device-daemon", "monitoring",
)  # fmt: skip


def objects(*folders: str) -> Iterator[dict[str, Any]]:
    for folder in folders:
        for path in sorted((DEPLOY / folder).glob("*.yaml")):
            if path.name != "kustomization.yaml":
                yield from yaml.safe_load_all(path.read_text())


def workloads() -> list[dict[str, Any]]:
    return [obj for obj in objects(*FOLDERS) if obj["kind"] in SELECTED]


def test_images_have_a_version_and_are_of_no_registry() -> None:
    images = {}
    for workload in workloads():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        images[workload["metadata"]["name"]] = container["image"]
        assert container["imagePullPolicy"] == "IfNotPresent"
    control_plane, node = manifestfiles.CONTROL_PLANE_IMAGE, manifestfiles.NODE_IMAGE
    assert images == {
        "koord-manager": control_plane, "koord-scheduler": control_plane, "koord-descheduler": control_plane,
        "koordlet": node, "koord-device-daemon": node,
    }  # fmt: skip
    listed = yaml.safe_load((DEPLOY / "base/kustomization.yaml").read_text())["images"]
    assert {f"{image['name']}:{image['newTag']}" for image in listed} == {control_plane, node}


def test_every_object_has_the_recommended_labels_and_no_selector_uses_them() -> None:
    for obj in objects(*FOLDERS):
        labels = obj["metadata"]["labels"]
        recommended = {"app.kubernetes.io/part-of": "koordinator", "app.kubernetes.io/version": VERSION}
        assert recommended.items() <= labels.items(), obj["metadata"]["name"]
        if obj["kind"] in SELECTED:
            assert recommended.items() <= obj["spec"]["template"]["metadata"]["labels"].items()
            assert list(obj["spec"]["selector"]["matchLabels"]) == ["koord-app"]


def test_the_control_plane_is_restricted_and_protected() -> None:
    for name in ("manager", "scheduler", "descheduler"):
        of_kind = {obj["kind"]: obj for obj in objects(name)}
        pod = of_kind["Deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert of_kind["PodDisruptionBudget"]["spec"]["maxUnavailable"] < of_kind["Deployment"]["spec"]["replicas"]
        open_ports = {port["port"] for port in of_kind["NetworkPolicy"]["spec"]["ingress"][0]["ports"]}
        assert open_ports == {port["containerPort"] for port in container["ports"]}


def test_no_pod_needs_apparmor() -> None:
    """Runtimes use their default profile where AppArmor is enabled. A kubelet without it refuses pods that name one."""
    prefix, profiles = "container.apparmor.security.beta.kubernetes.io/", {}
    for workload in workloads():
        template = workload["spec"]["template"]
        for context in (template["spec"].get("securityContext"), template["spec"]["containers"][0]["securityContext"]):
            assert "appArmorProfile" not in (context or {}), "unknown to API servers before 1.30"
        annotations = template["metadata"].get("annotations", {})
        profiles.update({key.removeprefix(prefix): annotations[key] for key in annotations if key.startswith(prefix)})
    assert profiles == {"koordlet": "unconfined"}


def test_the_objects_for_prometheus_are_current() -> None:
    assert monitoring.main(["--check"]) == 0
    rules = {obj["metadata"]["name"]: obj["spec"] for obj in objects("monitoring") if obj["kind"] == "PrometheusRule"}
    files = (DEPLOY / "prometheus").glob("*.rules.yaml")
    assert rules == {path.name.removesuffix(".rules.yaml"): yaml.safe_load(path.read_text()) for path in files}
    ports = {
        obj["metadata"]["name"]: {port["name"] for port in obj["spec"]["template"]["spec"]["containers"][0]["ports"]}
        for obj in workloads() if obj["metadata"]["name"] != "koord-device-daemon"
    }  # fmt: skip
    for app, (port, _) in monitoring.ENDPOINTS.items():
        assert port in ports[app]


def values(folder: Path) -> Any:
    return yaml.safe_load((folder / "values.yaml").read_text())


def resolved(expression: str, data: Any) -> Any:
    """The value of the expressions that SETTINGS uses."""
    image = re.fullmatch(r'\(printf "%s/%s:%s" (\S+) (\S+) \(toString (\S+)\)\) \| quote', expression)
    if image:
        host, repository, tag = (resolved(part, data) for part in image.groups())
        return f"{host}/{repository}:{tag}"
    path = re.fullmatch(r"(?:toJson )?\.Values\.([\w.]+)(?: \| toString \| quote)?", expression)
    assert path, expression
    for key in path.group(1).split("."):
        data = data[key]
    return str(data) if expression.endswith("quote") else data


def replaced(obj: Any, setting: Setting) -> Any:
    for step in setting.path:
        if isinstance(obj, dict):
            obj = obj[step]
        else:
            (obj,) = (
                item for item in obj if (item.startswith(step) if isinstance(item, str) else item["name"] == step)
            )
    return obj


def test_default_values_of_the_chart_are_those_of_the_manifests(tmp_path: Path) -> None:
    chart.write(tmp_path / "chart")
    data = values(tmp_path / "chart")
    by_name = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects(*FOLDERS)}
    for setting in SETTINGS:
        if not isinstance(setting, Optional):
            value = resolved(setting.expression, data)
            manifest = replaced(by_name[setting.kind, setting.name], setting)
            value = setting.contents[value] if isinstance(setting, Choice) else value
            assert manifest == (f"{setting.prefix}{value}" if setting.prefix else value), setting
        elif setting.expression.startswith(".Values"):
            assert not resolved(setting.expression, data), setting


def test_every_template_uses_only_values_that_exist(tmp_path: Path) -> None:
    chart.write(tmp_path / "chart")
    data = values(tmp_path / "chart")
    used = set()
    for path in (tmp_path / "chart/templates").iterdir():
        used |= set(re.findall(r"\.Values\.([\w.]+)", path.read_text()))
    for name in used:
        resolved(f".Values.{name}", data)
    settable = {name.split(".")[0] for name in used}
    assert settable == set(data), "a value without effect"
    metadata = yaml.safe_load((tmp_path / "chart/Chart.yaml").read_text())
    assert metadata["version"] == metadata["appVersion"] == VERSION


def test_braces_of_the_manifests_are_no_expressions(tmp_path: Path) -> None:
    chart.write(tmp_path / "chart")
    text = (tmp_path / "chart/templates/monitoring-rules.yaml").read_text()
    assert '{{ "{{" }} $value' in text and "{{ $value" not in text


@pytest.mark.kubectl
async def test_the_api_server_accepts_everything(tmp_path: Path) -> None:
    """A server-side dry run of deploy/; objects of the namespace need it to exist."""
    async with ApiServer(tmp_path / "api") as server:
        for arguments in (["-f", str(DEPLOY / "manager/namespace.yaml")], ["--dry-run=server", "-k", str(DEPLOY)]):
            command = [str(KUBECTL), "apply", *arguments]
            process = await asyncio.create_subprocess_exec(
                *command, env={"KUBECONFIG": str(server.kubeconfig_path), "HOME": str(tmp_path)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            out, err = await process.communicate()
            assert process.returncode == 0, err.decode()
    lines = out.decode().splitlines()
    assert len(lines) > 40 and all("(server dry run)" in line for line in lines)
    kinds = [line.split("/")[0] for line in lines]
    order = [kinds.index(kind) for kind in (
        "mutatingwebhookconfiguration.admissionregistration.k8s.io", "namespace", "serviceaccount", "configmap",
        "deployment.apps",
    )]  # fmt: skip
    assert order == sorted(order), kinds


def test_the_patch_that_sets_feature_gates_names_the_flag() -> None:
    """docs/howto.md and the shipped DaemonSet: a JSON patch names the position of an argument."""
    (daemon_set,) = (obj for obj in objects("koordlet") if obj["kind"] == "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    patch = re.findall(r"op: (test|replace), path: /spec/template/spec/containers/0/args/(\d+), value: \"(.*)\"",
                       (ROOT / "docs/howto.md").read_text())  # fmt: skip
    assert [operation for operation, _, _ in patch] == ["test", "replace"]
    for _, position, value in patch:
        assert value.startswith(container["args"][int(position)])
    assert patch[0][2] == container["args"][int(patch[0][1])]
