"""What koordlet's account may do in a cluster: deploy/koordlet and the folders that extend or restrict it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from control.ctl.manifests import apparmor, koordlet, koordletpolicy, olderkubelets, privileged
from koordlet.system.capabilities import CAPABILITIES
from tests.rights import granted

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_folders_are_current() -> None:
    for folder, module in (
        ("koordlet-policy", koordletpolicy),
        ("koordlet-older-kubelets", olderkubelets),
        ("koordlet-privileged", privileged),
        ("koordlet-apparmor", apparmor),
    ):
        texts = module.texts()
        assert {path.name for path in (DEPLOY / folder).iterdir()} == set(texts)
        for name, text in texts.items():
            assert (DEPLOY / folder / name).read_text() == text, f"run python -m {module.__name__}"


def test_koordlet_runs_with_its_capabilities_and_without_privileged() -> None:
    (daemonset,) = koordlet.daemonset()
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    context = container["securityContext"]
    assert "privileged" not in context and context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": [each.name for each in CAPABILITIES]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not [mount for mount in container["volumeMounts"] if mount.get("mountPropagation") == "Bidirectional"], (
        "the API server refuses it without privileged"
    )


def test_the_apparmor_profile_is_valid() -> None:
    profile = DEPLOY / "koordlet-apparmor/koordlet"
    command = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", str(profile)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    capabilities = {line.split()[1].rstrip(",") for line in profile.read_text().splitlines() if "capability" in line}
    assert capabilities == {each.name.lower() for each in CAPABILITIES}


def test_the_apparmor_profile_refuses_ways_out() -> None:
    """cgroup v1 has files that make the kernel run a program, and that allow devices; HAMi-core's library is loaded by
    containers."""
    rules = [line.strip() for line in apparmor.profile().splitlines() if not line.strip().startswith("#")]
    (cgroups,) = (rule for rule in rules if rule.startswith("deny") and "sys/fs/cgroup" in rule)
    assert {"release_agent", "devices.allow"} <= set(re.findall(r"[a-z_.]+", cgroups)) and cgroups.endswith(" wl,")
    assert [rule for rule in rules if "usr/local/vgpu" in rule] == ["/usr/local/vgpu/{vgpulock,containers}/{,**} rwk,"]


def test_koordlet_has_no_right_that_amounts_to_commands_in_containers() -> None:
    rights = granted(koordlet.rules()) | granted(koordlet.rules("n1"))
    assert not {right for right in rights if right[1] in ("nodes/proxy", "pods/exec", "nodes/*", "*")}
    role, binding = yaml.safe_load_all((DEPLOY / "koordlet-older-kubelets/rbac.yaml").read_text())
    assert granted(role["rules"]) == {("", "nodes/proxy", "get")}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == koordlet.ACCOUNT


def test_the_policy_covers_every_object_that_has_the_name_of_a_node() -> None:
    """Events, evictions, reviews of callers and creations by other names are not objects of a node."""
    policy, binding = koordletpolicy.policy()
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    covered = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    reads = {"get", "list", "watch"}
    koordlets = [*koordlet.rules(), *(rule for each in koordlet.RIGHTS for rule in each.rules)]
    written = {(group, resource) for group, resource, verb in granted(koordlets) if verb not in reads}
    reviews = {("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")}
    assert written - covered == {("", "events"), ("", "pods/eviction")} | reviews
