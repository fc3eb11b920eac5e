"""CustomResourceDefinitions of the custom kinds, generated from their structs.

    python -m koordlet.api.encoding.crdgen --out deploy/crds           write the manifests
    python -m koordlet.api.encoding.crdgen --out deploy/crds --check   exit 1 if they differ from the structs

The schema comes from `koordlet.api.encoding.schemas`, names and scope from `koordlet.api.registry`; printer columns and
group approvals are the tables below. `documents()` returns the manifests as objects (spec 01 §3.1).
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from koordlet.api.encoding.schemas import root_schema
from koordlet.api.registry import CUSTOM, ApiResource

Column = tuple[str, str, str] | tuple[str, str, str, int]
_AGE: Column = ("Age", "date", ".metadata.creationTimestamp")
_USAGE = ".status.nodeMetric"
_RECLAIMABLE = ".status.prodReclaimableMetric.resource.resources"
_THRESHOLDS = ".spec.resourceUsedThresholdWithBE"
WIDE = 1
"""Priority of a column that only `kubectl get -o wide` shows."""

PRINTER_COLUMNS: dict[str, tuple[Column, ...]] = {
    "NodeMetric": (
        ("CPU", "string", f"{_USAGE}.nodeUsage.resources.cpu"),
        ("Memory", "string", f"{_USAGE}.nodeUsage.resources.memory"),
        ("Reclaimable-CPU", "string", f"{_RECLAIMABLE}.cpu"),
        ("Reclaimable-Mem", "string", f"{_RECLAIMABLE}.memory"),
        ("Hurt-Pods", "integer", ".status.extensions.interference.hurtPods"),
        ("Reported", "date", ".status.updateTime"),
        _AGE,
        ("System-CPU", "string", f"{_USAGE}.systemUsage.resources.cpu", WIDE),
        ("System-Mem", "string", f"{_USAGE}.systemUsage.resources.memory", WIDE),
        ("Interval", "integer", ".spec.metricCollectPolicy.reportIntervalSeconds", WIDE),
    ),
    "NodeSLO": (
        ("BE-Thresholds", "boolean", f"{_THRESHOLDS}.enable"),
        ("Suppress-CPU", "integer", f"{_THRESHOLDS}.cpuSuppressThresholdPercent"),
        ("Evict-Mem", "integer", f"{_THRESHOLDS}.memoryEvictThresholdPercent"),
        ("CPU-Burst", "string", ".spec.cpuBurstStrategy.policy"),
        _AGE,
    ),
    "Device": (("Type", "string", ".spec.devices[0].type"), _AGE),
    "ElasticQuota": (
        ("Min-CPU", "string", ".spec.min.cpu"),
        ("Max-CPU", "string", ".spec.max.cpu"),
        ("Used-CPU", "string", ".status.used.cpu"),
        ("Max-Mem", "string", ".spec.max.memory"),
        ("Used-Mem", "string", ".status.used.memory"),
        _AGE,
        ("Min-Mem", "string", ".spec.min.memory", WIDE),
    ),
    "Queue": (("Policy", "string", ".spec.queuePolicy"), ("Priority", "integer", ".spec.priority"), _AGE),
    "QueueUnit": (
        ("Queue", "string", ".spec.queue"),
        ("Phase", "string", ".status.phase"),
        ("Quota", "string", ".status.quota"),
        _AGE,
        ("Message", "string", ".status.message", WIDE),
    ),
    "PodGroup": (
        ("Phase", "string", ".status.phase"),
        ("MinMember", "integer", ".spec.minMember"),
        ("Scheduled", "integer", ".status.scheduled"),
        ("Running", "integer", ".status.running"),
        ("Succeeded", "integer", ".status.succeeded"),
        ("Failed", "integer", ".status.failed"),
        _AGE,
    ),
    "ClusterColocationProfile": (
        ("QoS", "string", ".spec.qosClass"),
        ("PriorityClass", "string", ".spec.priorityClassName"),
        ("SubPriority", "integer", ".spec.koordinatorPriority"),
        ("Scheduler", "string", ".spec.schedulerName"),
        ("Probability", "string", ".spec.probability"),
        _AGE,
    ),
    "ElasticQuotaProfile": (
        ("Quota", "string", ".spec.quotaName"),
        ("Ratio", "string", ".spec.resourceRatio"),
        _AGE,
    ),
    "ScheduleExplanation": (
        ("Schedulable", "boolean", ".status.schedulable"),
        ("Message", "string", ".status.failedMessage"),
        _AGE,
    ),
    "Reservation": (
        ("Phase", "string", ".status.phase"),
        _AGE,
        ("Node", "string", ".status.nodeName"),
        ("TTL", "string", ".spec.ttl"),
        ("Expires", "string", ".spec.expires"),
    ),
    "PodMigrationJob": (
        ("Phase", "string", ".status.phase"),
        ("Status", "string", ".status.status"),
        _AGE,
        ("Node", "string", ".status.nodeName"),
        ("Reservation", "string", ".spec.reservationOptions.reservationRef.name"),
        ("PodNamespace", "string", ".spec.podRef.namespace"),
        ("Pod", "string", ".spec.podRef.name"),
        ("NewPod", "string", ".status.podRef.name"),
        ("TTL", "string", ".spec.ttl"),
    ),
    "DrainNode": (
        ("Node", "string", ".spec.nodeName"),
        ("Phase", "string", ".status.phase"),
        ("Confirm", "string", ".spec.confirmState"),
        ("Moved", "integer", ".status.podMigrationSummary.Succeed"),
        ("Moving", "integer", ".status.podMigrationSummary.Migrating"),
        ("Planned", "integer", ".status.podMigrationSummary.Available"),
        ("Unmigratable", "integer", ".status.podMigrationSummary.Unmigratable"),
        _AGE,
        ("Message", "string", ".status.message", 1),
    ),
    "DrainNodeGroup": (
        ("Phase", "string", ".status.phase"),
        ("Total", "integer", ".status.total"),
        ("Available", "integer", ".status.available"),
        ("Running", "integer", ".status.running"),
        ("Succeeded", "integer", ".status.succeeded"),
        ("Failed", "integer", ".status.failed"),
        _AGE,
    ),
    "Recommendation": (
        _AGE,
        ("Type", "string", ".spec.target.type"),
        ("Kind", "string", ".spec.target.workload.kind"),
        ("Name", "string", ".spec.target.workload.name"),
        ("LastUpdateTime", "date", ".status.updateTime"),
    ),
}
"""Kind -> (name, type, JSONPath, priority); other kinds show NAME and AGE."""

# Kubernetes refuses CRDs of *.k8s.io groups without an approval annotation.
APPROVALS: dict[str, str] = {
    "scheduling.sigs.k8s.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52",
    "topology.node.k8s.io": "https://github.com/kubernetes/enhancements/pull/1870",
}

KUSTOMIZATION = "kustomization.yaml"
_HEADER = "# Generated from the structs of koordlet.api by `make crds`; edit those instead.\n"


class _Dumper(yaml.SafeDumper):
    """Block style without anchors, list items indented."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def documents() -> dict[str, dict[str, Any]]:
    """File name -> CustomResourceDefinition, in the order of the registry."""
    versions: dict[tuple[str, str], list[ApiResource]] = {}
    for resource in CUSTOM:
        versions.setdefault((resource.group, resource.plural), []).append(resource)
    return {f"{group}_{plural}.yaml": _definition(rows) for (group, plural), rows in versions.items()}


def render() -> dict[str, str]:
    """File name -> text of every file of the folder, kustomization.yaml included."""
    files = {name: _HEADER + _dump(document) for name, document in documents().items()}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    return {**files, KUSTOMIZATION: _HEADER + _dump(kustomization)}


def differences(folder: Path) -> list[str]:
    """Names of files in `folder` that are missing, stale or not generated."""
    expected = render()
    present = {path.name for path in folder.glob("*.yaml")}
    stale = {name for name in present & set(expected) if (folder / name).read_text(encoding="utf-8") != expected[name]}
    return sorted(stale | (present ^ set(expected)))


def write(folder: Path) -> None:
    """Write every file and remove the manifests of kinds that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    files = render()
    for path in folder.glob("*.yaml"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _definition(rows: list[ApiResource]) -> dict[str, Any]:
    first = rows[0]
    metadata: dict[str, Any] = {"name": f"{first.plural}.{first.group}"}
    if first.group in APPROVALS:
        metadata["annotations"] = {"api-approved.kubernetes.io": APPROVALS[first.group]}
    names: dict[str, Any] = {
        "kind": first.kind,
        "listKind": first.list_kind,
        "plural": first.plural,
        "singular": first.singular,
    }
    if first.short_names:
        names["shortNames"] = list(first.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": first.group,
            "names": names,
            "scope": "Namespaced" if first.namespaced else "Cluster",
            # The newest version is the storage version.
            "versions": [_version(row, storage=row is rows[-1]) for row in rows],
        },
    }


def _version(resource: ApiResource, *, storage: bool) -> dict[str, Any]:
    version: dict[str, Any] = {"name": resource.version, "served": True, "storage": storage}
    columns = PRINTER_COLUMNS.get(resource.kind)
    if columns:
        version["additionalPrinterColumns"] = [
            {"name": name, "type": column_type, "jsonPath": path, **({"priority": priority[0]} if priority else {})}
            for name, column_type, path, *priority in columns
        ]
    version["schema"] = {"openAPIV3Schema": root_schema(resource.type)}
    if resource.status_subresource:
        version["subresources"] = {"status": {}}
    return version


def _dump(document: dict[str, Any]) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


def main(argv: list[str]) -> int:
    """Command line entry point."""
    parser = argparse.ArgumentParser(prog="crdgen", description="Generate the CustomResourceDefinitions.")
    parser.add_argument("--out", type=Path, default=Path("deploy/crds"), help="folder of the manifests")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on any difference")
    options = parser.parse_args(argv)
    if not options.check:
        write(options.out)
        return 0
    stale = differences(options.out)
    for name in stale:
        sys.stderr.write(f"{options.out / name}: differs from the structs; run `make crds`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
