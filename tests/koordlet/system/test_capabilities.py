"""What koordlet says about rights that it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.system import kernel
from koordlet.system.capabilities import CAPABILITIES, UsedCapability, missing
from koordlet.system.host import probe
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under

EVERY = (1 << 64) - 1


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.name)
def test_a_missing_capability_is_named_with_its_effect_and_a_remedy(capability: UsedCapability) -> None:
    assert missing(EVERY) == {}
    lacking = missing(EVERY & ~(1 << capability.number))
    if capability.name in ("BPF", "PERFMON"):
        assert lacking == {}, "SYS_ADMIN replaces it"
        return
    ((name, text),) = lacking.items()
    assert name == capability.name
    assert capability.without in text and f"Add {name} to the capabilities" in text


def test_the_features_name_what_the_process_lacks(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    status = roots.proc / "self/status"
    status.parent.mkdir(parents=True)
    status.write_text(f"CapEff:\t{EVERY & ~(1 << 12):016x}\n")
    features = kernel.capability_features(roots)
    assert {name for name, feature in features.items() if not feature} == {"cap_net_admin"}
    assert "no network QoS" in features["cap_net_admin"].reason
    status.write_text("no mask\n")
    assert {feature.reason for feature in kernel.capability_features(roots).values()} == {f"{status} shows no CapEff"}


@pytest.mark.kernel
def test_read_only_sysctls_and_cgroups_are_named() -> None:
    """As in a container without `privileged` that mounts none of the node's directories."""
    code = (
        "from koordlet.system.host import probe; from koordlet.system.roots import Roots;"
        "reasons = probe(Roots.host()).reasons();"
        "print(reasons['sysctls_writable'], reasons['cgroups_writable'], sep='\\n')"
    )
    fixed = "mount --bind -o ro /proc/sys /proc/sys; for each in $(findmnt -rno TARGET | grep '^/sys/fs/cgroup/'); do"
    fixed += ' mount -o remount,bind,ro "$each"; done; exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", fixed, "sh", sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    sysctls, cgroups = done.stdout.splitlines()
    assert sysctls.startswith("/proc/sys/vm/min_free_kbytes cannot be written") and "--proc-sys-root-dir" in sysctls
    assert "read-only" in cgroups and "--cgroup-root-dir" in cgroups


@pytest.mark.kernel
def test_writable_sysctls_and_cgroups_are_features() -> None:
    facts = probe(Roots.host())
    assert facts.has("sysctls_writable") and facts.has("cgroups_writable"), facts.reasons()
