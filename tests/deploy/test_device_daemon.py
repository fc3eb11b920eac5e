"""deploy/device-daemon: its own selector, and the mounts that the daemon needs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from control.ctl.manifests import koordlet as koordletmanifests
from devicedaemon.options import resolve

FOLDER = Path(__file__).resolve().parents[2] / "deploy/device-daemon"


def daemonset() -> Any:
    return yaml.safe_load((FOLDER / "daemonset.yaml").read_text())


def test_its_selector_matches_only_its_own_pods() -> None:
    own, (koordlet,) = daemonset(), koordletmanifests.daemonset()
    selector = own["spec"]["selector"]["matchLabels"]
    assert selector == {"koord-app": "koord-device-daemon"}
    assert selector.items() <= own["spec"]["template"]["metadata"]["labels"].items()
    assert not selector.items() <= koordlet["spec"]["template"]["metadata"]["labels"].items()
    koordlet_selector = koordlet["spec"]["selector"]["matchLabels"]
    assert not koordlet_selector.items() <= own["spec"]["template"]["metadata"]["labels"].items()


def test_it_has_the_rights_and_mounts_that_it_needs() -> None:
    own = daemonset()
    pod = own["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = resolve(container["args"], {})
    assert container["command"] == ["koord-device-daemon"]
    assert not {"hostPID", "hostIPC", "hostNetwork"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert container["securityContext"] == {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {str(PurePosixPath(options.output).parent)}
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert own["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}
    outside = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounted = {mount["mountPath"].rstrip("/"): outside[mount["name"]] for mount in container["volumeMounts"]}
    output = str(PurePosixPath(options.output).parent)
    needed = (options.host_root_dir, options.sys_root_dir, options.dev_root_dir, output)
    assert mounted == dict(zip((path.rstrip("/") for path in needed), ("/", "/sys", "/dev", output), strict=True))


def test_koordlet_reads_the_directory_that_it_writes() -> None:
    own, (koordlet,) = daemonset(), koordletmanifests.daemonset()
    pod = koordlet["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (infos,) = (word.partition("=")[2] for word in container["args"] if word.startswith("--xpu-device-infos-dir="))
    outside = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: outside[mount["name"]] for mount in container["volumeMounts"]}
    inside = next(path for path in mounts if PurePosixPath(infos).is_relative_to(path) and path != "/")
    read = PurePosixPath(mounts[inside]) / PurePosixPath(infos).relative_to(inside)
    written = resolve(own["spec"]["template"]["spec"]["containers"][0]["args"], {}).output
    assert read == PurePosixPath(written).parent
