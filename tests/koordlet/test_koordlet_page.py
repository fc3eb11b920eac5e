"""docs/koordlet.md says which flags there are, with kinds, defaults and meanings; Koordinator's are all taken."""

import re
from pathlib import Path

import pytest

from koordlet.app.flags import FlagError, deprecated, read, usage
from koordlet.ignoredflags import IgnoredFlags
from koordlet.options import KoordletOptions

PAGE = (Path(__file__).parents[2] / "docs/koordlet.md").read_text()


def test_the_page_and_the_options_agree() -> None:
    documented = {
        cells[1].strip("`"): (cells[2], cells[3].strip("`"), cells[4])
        for line in PAGE[PAGE.index("\n## Flags\n") :].splitlines()
        if line.startswith("| `--") and (cells := [cell.strip() for cell in line.split("|")]) and len(cells) == 6
    }
    offered = {}
    for name, kind, text in re.findall(
        r"^  (--\S+)(.*)\n {8}(.*)$", usage(KoordletOptions, prog="koordlet"), re.MULTILINE
    ):
        if name in ("--help", "--version") or "[deprecated" in text:
            continue
        default = re.search(r" \(default ([^()]*)\)$", text)
        meaning = text if default is None else text[: default.start()]
        offered[name] = (kind.strip() or "bool", "" if default is None else default[1], meaning)
    assert documented == offered


def test_every_failure_is_in_a_table_of_the_page() -> None:
    section = PAGE[PAGE.index("\n## Failures\n") : PAGE.index("\n## Flags\n")]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 10 and {len(row) for row in rows} == {2}


KOORDINATORS = [
    "--configmap-name=koordlet-config", "--configmap-namespace=koordinator-system", "--report-interval=60s",
    "--docker-endpoint=/run/d.sock", "--pouch-endpoint=/run/p.sock",
    "--tsdb-path=/metric-data/", "--tsdb-min-block-duration=10m", "--tsdb-max-block-duration=10m",
    "--tsdb-stripe-size=16384", "--tsdb-wal-segment-size=1048576", "--tsdb-max-block-chunk-segment-size=5242880",
    "--tsdb-head-chunks-write-buffer-size=1048576", "--tsdb-enable-prometheus-metric",
    "--metric-gc-interval-seconds=300", "--metric-expire-seconds=1800",
    "--qos-extension-plugins=A=true",
]  # fmt: skip
"""Spec 02 §1.5 and 03 §7: flags of Koordinator's koordlet that nothing here asks for."""


def test_koordinators_flags_without_effect_are_taken_and_said() -> None:
    options = read(KoordletOptions, [*KOORDINATORS, "--node-name=n", "--logtostderr=true"])
    assert options.node_name == "n"
    ignored = deprecated(options)
    assert all(ignored.values())
    assert set(ignored) == {flag.lstrip("-").partition("=")[0] for flag in KOORDINATORS}
    assert len(ignored) == len(IgnoredFlags.__annotations__)
    assert deprecated(read(KoordletOptions, ["--node-name=n"])) == {}


@pytest.mark.parametrize(
    "flag", ["--tsdb-stripe-size=many", "--only-evict-by-api=perhaps", "--qos-extension-plugins=A"]
)
def test_what_cannot_be_read_is_refused_all_the_same(flag: str) -> None:
    with pytest.raises(FlagError, match=flag.partition("=")[0]):
        read(KoordletOptions, [flag])


DEFAULTS = {
    "addr": ":9316", "enable-pprof": "", "pprof-addr": ":9317", "kube-api-qps": "20.0", "kube-api-burst": "30",
    "default-runtime-type": "containerd", "hami-core-library-directory-path": "/usr/local/vgpu/libvgpu.so",
    "kubelet-preferred-address-type": "InternalIP", "kubelet-sync-interval": "10s", "kubelet-sync-timeout": "3s",
    "kubelet-insecure-tls": "", "kubelet-read-only-port": "10255", "node-topology-sync-interval": "3s",
    "disable-query-kubelet-config": "", "enable-node-metric-report": "true", "enable-pod-taskids": "",
    "collect-res-used-interval": "1s", "collect-sys-metric-outdated-interval": "10s",
    "collect-node-cpu-info-interval": "1m0s", "collect-node-storage-info-interval": "1s",
    "cpi-collector-interval": "1m0s", "collect-cpi-timewindow": "10s", "psi-collector-interval": "10s",
    "coldpage-collector-interval": "5s", "resctrl-collector-interval": "10s", "enable-pagecache-collector": "",
    "enable-resctrl-collector": "", "tsdb-retention-duration": "12h0m0s", "tsdb-max-bytes": "104857600",
    "prediction-checkpoint-filepath": "/prediction-checkpoints", "prediction-cold-start-duration": "24h0m0s",
    "prediction-safety-margin-percent": "10", "prediction-cpu-histogram-decay-halflife": "12h0m0s",
    "prediction-memory-histogram-decay-halflife": "24h0m0s", "prediction-training-interval": "1m0s",
    "prediction-model-expiration-duration": "30m0s", "prediction-model-checkpoint-interval": "10m0s",
    "prediction-model-checkpoint-max-per-step": "12", "audit-log-dir": "/var/log/koordlet", "audit-verbose": "3",
    "audit-max-disk-space-mb": "16", "audit-max-concurrent-readers": "4", "audit-max-events-limit": "2048",
    "reconcile-interval-seconds": "1", "cpu-suppress-interval-seconds": "1", "cpu-evict-interval-seconds": "1",
    "memory-evict-interval-seconds": "1", "memory-evict-cool-time-seconds": "4", "cpu-evict-cool-time-seconds": "20",
    "resource-force-update-seconds": "60", "runtime-hooks-network": "unix",
    "runtime-hooks-host-endpoint": "/var/run/koordlet/koordlet.sock", "runtime-hooks-failure-policy": "Ignore",
    "runtime-hooks-plugin-failure-policy": "Ignore", "runtime-hooks-disable-stages": "",
    "enable-nri-runtime-hook": "true", "runtime-hooks-nri-socket-path": "nri/nri.sock",
    "runtime-hooks-nri-plugin-name": "koordlet_nri", "runtime-hooks-nri-plugin-index": "00",
    "runtime-hooks-nri-connect-timeout": "6s", "runtime-hooks-nri-backoff-duration": "1s",
    "runtime-hooks-nri-backoff-steps": "2147483647", "runtime-hooks-nri-backoff-factor": "2.0",
    "runtime-hooks-reconcile-interval": "10s", "disable-unset-cpu-quota": "",
}  # fmt: skip
"""Spec 02 §1.5, but for paths that depend on agent_mode and the backoff's cap (docs/hooks.md)."""


def test_koordinators_flags_have_koordinators_defaults() -> None:
    text = usage(KoordletOptions, prog="koordlet")
    offered = {
        name: (re.search(r" \(default ([^()]*)\)", meaning) or ["", ""])[1]
        for name, meaning in re.findall(r"^  --(\S+).*\n {8}(.*)$", text, re.MULTILINE)
    }
    assert {name: offered.get(name) for name in DEFAULTS} == DEFAULTS


PLACES = {
    "cgroup": ("/host-cgroup", "/sys/fs/cgroup"), "sys": ("/host-sys", "/sys"), "sys_fs": ("/host-sys-fs", "/sys/fs"),
    "proc": ("/proc", "/proc"), "proc_sys": ("/proc/sys", "/proc/sys"), "dev": ("/dev", "/dev"),
    "var_run": ("/host-var-run", "/var/run"), "run": ("/host-run", "/run"),
    "var_lib_kubelet": ("/var/lib/kubelet", "/var/lib/kubelet"),
    "hook_config": ("/host-etc-hookserver", "/etc/runtime/hookserver.d"),
}  # fmt: skip


@pytest.mark.parametrize(("mode", "column"), [("", 0), ("dsMode", 0), ("hostMode", 1)])
def test_where_things_are_depends_on_agent_mode(monkeypatch: pytest.MonkeyPatch, mode: str, column: int) -> None:
    monkeypatch.setenv("agent_mode", mode)
    roots = read(KoordletOptions, ["--node-name=n"]).roots()
    assert {name: str(getattr(roots, name)) for name in PLACES} == {name: row[column] for name, row in PLACES.items()}
