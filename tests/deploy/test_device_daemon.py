"""deploy/device-daemon: as generated, with a selector of its own, and with what the daemon looks for mounted."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from control.ctl.manifests import devicedaemon as manifests
from control.ctl.manifests import koordlet as koordletmanifests
from devicedaemon.options import resolve

FOLDER = Path(__file__).resolve().parents[2] / "deploy/device-daemon"


def test_deploy_holds_what_it_is_installed_with() -> None:
    made = manifests.texts()
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == made, f"run python -m {manifests.__name__}"


def test_its_pods_are_nobody_elses() -> None:
    (own,), (koordlet,) = manifests.daemonset(), koordletmanifests.daemonset()
    selector = own["spec"]["selector"]["matchLabels"]
    assert selector == {"koord-app": "koord-device-daemon"}
    assert selector.items() <= own["spec"]["template"]["metadata"]["labels"].items()
    assert not selector.items() <= koordlet["spec"]["template"]["metadata"]["labels"].items()
    theirs = koordlet["spec"]["selector"]["matchLabels"]
    assert not theirs.items() <= own["spec"]["template"]["metadata"]["labels"].items()


def test_what_it_needs_of_the_node() -> None:
    (own,) = manifests.daemonset()
    pod = own["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = resolve(container["args"], {})
    assert container["command"] == ["koord-device-daemon"]
    assert (pod["hostPID"], pod["hostIPC"], pod["hostNetwork"]) == (True, True, True)
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert container["securityContext"] == {
        "privileged": True, "runAsUser": 0, "seccompProfile": {"type": "Unconfined"},
    }  # fmt: skip
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert own["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}
    outside = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounted = {mount["mountPath"].rstrip("/"): outside[mount["name"]] for mount in container["volumeMounts"]}
    output = str(PurePosixPath(options.output).parent)
    looked_at = (options.host_root_dir, options.sys_root_dir, options.dev_root_dir, output)
    assert mounted == dict(zip((path.rstrip("/") for path in looked_at), ("/", "/sys", "/dev", output), strict=True))


def test_koordlet_looks_where_it_writes() -> None:
    (own,), (koordlet,) = manifests.daemonset(), koordletmanifests.daemonset()
    pod = koordlet["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (told,) = (word.partition("=")[2] for word in container["args"] if word.startswith("--xpu-device-infos-dir="))
    outside = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    seen = {mount["mountPath"]: outside[mount["name"]] for mount in container["volumeMounts"]}
    inside = next(path for path in seen if PurePosixPath(told).is_relative_to(path) and path != "/")
    read = PurePosixPath(seen[inside]) / PurePosixPath(told).relative_to(inside)
    written = resolve(own["spec"]["template"]["spec"]["containers"][0]["args"], {}).output
    assert read == PurePosixPath(written).parent
