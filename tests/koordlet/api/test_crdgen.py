"""The CRDs match spec 01 §3, the structs and deploy/crds, and are structural."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from koordlet.api import registry
from koordlet.api.encoding import crdgen, wire
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.schemas import PRESERVE, QUANTITY_PATTERN, SchemaError, root_schema

ROOT = Path(__file__).resolve().parents[3]


def load_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crd_table", Path(__file__).with_name("crd_table.py"))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


TABLE = load_table()
DOCUMENTS = {document["spec"]["names"]["kind"]: document for document in crdgen.documents().values()}
TYPES = {("NodeResourceTopology/" + r.version) if r.kind == "NodeResourceTopology" else r.kind: r.type
         for r in registry.CUSTOM}  # fmt: skip


def schema_of(name: str) -> dict[str, Any]:
    kind, _, version = name.partition("/")
    versions = DOCUMENTS[kind]["spec"]["versions"]
    return next(v["schema"]["openAPIV3Schema"] for v in versions if not version or v["name"] == version)


def kind_of(schema: dict[str, Any]) -> str:
    """The type of a schema in the notation of the table."""
    if schema.get(PRESERVE):
        assert schema["type"] == "object"
        return "keep"
    if schema.get("x-kubernetes-int-or-string"):
        assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
        assert schema.get("pattern") in (None, QUANTITY_PATTERN)
        return "qty" if "pattern" in schema else "ios"
    match schema["type"]:
        case "array":
            return kind_of(schema["items"]) + "[]"
        case "object" if "additionalProperties" in schema:
            value = kind_of(schema["additionalProperties"])
            return {"str": "map", "qty": "qtys", "bool": "bools"}.get(value, value + "{}")
        case "object":
            return "obj"
        case "boolean":
            return "bool"
        case "integer":
            return {"int32": "int32", "int64": "int"}[schema["format"]]
        case "number":
            return "num"
        case "string":
            return "time" if schema.get("format") == "date-time" else "str"
    raise AssertionError(schema)


def describe(schema: dict[str, Any], *, required: bool) -> set[str]:
    """Type and notes of a field, as the words of a table row."""
    words = {kind_of(schema)}
    if required:
        words.add("*")
    if "enum" in schema:
        words.add(f"<{'|'.join(schema['enum'])}>")
    if "default" in schema:
        default = schema["default"]
        words.add(f"={default if isinstance(default, str) else json.dumps(default)}")
    if "minimum" in schema or "maximum" in schema:
        words.add(f"{schema.get('minimum', '')}..{schema.get('maximum', '')}")
    if schema.get("nullable"):
        words.add("null")
    return words


def walk(schema: dict[str, Any], path: str = "") -> dict[str, set[str]]:
    """Path -> words for every field below `schema`."""
    while "items" in schema or isinstance(schema.get("additionalProperties"), dict):
        schema = schema.get("items") or schema["additionalProperties"]
    names: dict[str, set[str]] = {}
    for name, field in schema.get("properties", {}).items():
        if not path and name in ("kind", "apiVersion", "metadata"):
            continue
        here = f"{path}.{name}" if path else name
        names[here] = describe(field, required=name in schema.get("required", []))
        names.update(walk(field, here))
    return names


def table_fields(name: str) -> dict[str, set[str]]:
    # A duration is a string in the schema; the struct tests tell them apart.
    return {
        path: {"str" if w == "dur" else "str[]" if w == "dur[]" else w for w in rest.split()}
        for path, rest in TABLE.rows(TABLE.KINDS[name]).items()
    }


def test_number_of_kinds() -> None:
    assert len(DOCUMENTS) == 17
    assert set(TABLE.KINDS) == set(TYPES)


@pytest.mark.parametrize("name", TABLE.KINDS)
def test_fields(name: str) -> None:
    assert walk(schema_of(name)) == table_fields(name)


@pytest.mark.parametrize("name", TABLE.KINDS)
def test_struct_and_schema_agree(name: str) -> None:
    """A document that uses every field of the schema goes through the struct and comes back whole."""

    def sample(schema: dict[str, Any]) -> Any:
        if schema.get(PRESERVE):
            return {"metadata": {"labels": {"a": "b"}}, "spec": {}}
        if schema.get("x-kubernetes-int-or-string"):
            return "7"
        if "enum" in schema:
            return schema["enum"][0]
        match schema["type"]:
            case "object" if "additionalProperties" in schema:
                return {"key": sample(schema["additionalProperties"])}
            case "object":
                return {key: sample(field) for key, field in schema.get("properties", {}).items()}
            case "array":
                return [sample(schema["items"])]
            case "boolean":
                return True
            case "integer":
                return 7
            case "number":
                return 7.5
        if "pattern" in schema:
            return "Reason"
        # Reads back as itself from a duration, too.
        return "2024-03-05T08:00:00Z" if schema.get("format") == "date-time" else "7s"

    schema = schema_of(name)
    document = sample(schema)
    document |= {"kind": name.split("/")[0], "metadata": {"name": "x"}}
    document["apiVersion"] = registry.resource_for(TYPES[name]).api_version
    jsonschema.validate(document, schema)
    assert json.loads(wire.encode(wire.decode(json.dumps(document).encode(), TYPES[name]))) == document


@pytest.mark.parametrize("name", TABLE.KINDS)
def test_schema_is_structural(name: str) -> None:
    def check(schema: dict[str, Any], where: str) -> None:
        assert "$ref" not in schema, where
        assert schema.get("type") or schema.get("x-kubernetes-int-or-string"), where
        assert not ("properties" in schema and "additionalProperties" in schema), where
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), where
        assert schema.get("description") or where.endswith(("metadata", "[]", "{}")), where
        if "default" in schema:
            jsonschema.validate(schema["default"], schema)
        for key, field in schema.get("properties", {}).items():
            check(field, f"{where}.{key}")
        if "items" in schema:
            check(schema["items"], f"{where}[]")
        if "additionalProperties" in schema:
            check(schema["additionalProperties"], f"{where}{{}}")

    check(schema_of(name), name)


def test_reservation_owner_notes() -> None:
    owners = schema_of("Reservation")["properties"]["spec"]["properties"]["owners"]
    assert owners["minItems"] == 1
    assert owners["items"]["minProperties"] == 1
    assert owners["items"]["properties"]["object"]["x-kubernetes-map-type"] == "atomic"
    assert owners["items"]["properties"]["labelSelector"]["x-kubernetes-map-type"] == "atomic"


def test_condition_notes() -> None:
    condition = schema_of("Recommendation")["properties"]["status"]["properties"]["conditions"]["items"]["properties"]
    assert condition["type"]["maxLength"] == 316
    assert (condition["reason"]["minLength"], condition["reason"]["maxLength"]) == (1, 1024)
    assert condition["reason"]["pattern"] == "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    assert condition["message"]["maxLength"] == 32768


@pytest.mark.parametrize(
    ("value", "ok"),
    [("100m", True), ("1Gi", True), ("1e3", True), (".5", True), ("-2", True), ("1 Gi", False), ("Gi", False)],
)
def test_quantity_pattern(value: str, ok: bool) -> None:
    schema = schema_of("ElasticQuota")["properties"]["spec"]["properties"]["min"]
    assert jsonschema.Draft202012Validator(schema).is_valid({"cpu": value}) is ok


# Kind: (plural.group, scope, short names, status subresource)
NAMES = {
    "NodeMetric": ("nodemetrics.slo.koordinator.sh", "Cluster", ["nm"], True),
    "NodeSLO": ("nodeslos.slo.koordinator.sh", "Cluster", ["nslo"], True),
    "Reservation": ("reservations.scheduling.koordinator.sh", "Cluster", ["rsv"], True),
    "Device": ("devices.scheduling.koordinator.sh", "Cluster", None, False),
    "PodMigrationJob": ("podmigrationjobs.scheduling.koordinator.sh", "Cluster", ["pmj"], True),
    "DrainNode": ("drainnodes.scheduling.koordinator.sh", "Cluster", ["dn"], True),
    "DrainNodeGroup": ("drainnodegroups.scheduling.koordinator.sh", "Cluster", ["dng"], True),
    "ClusterNetworkTopology": ("clusternetworktopologies.scheduling.koordinator.sh", "Cluster", None, True),
    "ScheduleExplanation": ("scheduleexplanations.scheduling.koordinator.sh", "Namespaced", ["sched-exp"], True),
    "ClusterColocationProfile": ("clustercolocationprofiles.config.koordinator.sh", "Cluster", ["ccp"], True),
    "ElasticQuotaProfile": ("elasticquotaprofiles.quota.koordinator.sh", "Namespaced", ["eqp"], False),
    "ElasticQuota": ("elasticquotas.scheduling.sigs.k8s.io", "Namespaced", ["eq", "eqs"], False),
    "Queue": ("queues.scheduling.x-k8s.io", "Namespaced", None, True),
    "QueueUnit": ("queueunits.scheduling.x-k8s.io", "Namespaced", None, True),
    "PodGroup": ("podgroups.scheduling.sigs.k8s.io", "Namespaced", ["pg", "pgs"], False),
    "NodeResourceTopology": ("noderesourcetopologies.topology.node.k8s.io", "Cluster", ["node-res-topo"], False),
    "Recommendation": ("recommendations.analysis.koordinator.sh", "Namespaced", ["recom"], True),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_and_scope(kind: str) -> None:
    document = DOCUMENTS[kind]
    name, scope, short, status = NAMES[kind]
    spec = document["spec"]
    assert document["metadata"]["name"] == name
    assert (spec["scope"], spec["names"].get("shortNames")) == (scope, short)
    assert spec["names"]["singular"] == kind.lower()
    assert spec["names"]["listKind"] == f"{kind}List"
    assert "categories" not in spec["names"]
    for version in spec["versions"]:
        assert version.get("subresources") == ({"status": {}} if status else None)
        assert version["served"] is True


def test_versions() -> None:
    versions = {kind: [(v["name"], v["storage"]) for v in d["spec"]["versions"]] for kind, d in DOCUMENTS.items()}
    assert versions.pop("NodeResourceTopology") == [("v1alpha1", False), ("v1alpha2", True)]
    assert set(map(tuple, versions.values())) == {(("v1alpha1", True),)}


def test_approvals() -> None:
    approved = {
        kind: document["metadata"]["annotations"]["api-approved.kubernetes.io"]
        for kind, document in DOCUMENTS.items()
        if "annotations" in document["metadata"]
    }
    plugins = "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52"
    assert approved == {
        "ElasticQuota": plugins,
        "PodGroup": plugins,
        "NodeResourceTopology": "https://github.com/kubernetes/enhancements/pull/1870",
    }


COLUMNS = {
    "NodeMetric": """CPU .status.nodeMetric.nodeUsage.resources.cpu;
        Memory .status.nodeMetric.nodeUsage.resources.memory;
        Reclaimable-CPU .status.prodReclaimableMetric.resource.resources.cpu;
        Reclaimable-Mem .status.prodReclaimableMetric.resource.resources.memory;
        Hurt-Pods .status.extensions.interference.hurtPods integer; Reported .status.updateTime date;
        Age .metadata.creationTimestamp date; System-CPU .status.nodeMetric.systemUsage.resources.cpu;
        System-Mem .status.nodeMetric.systemUsage.resources.memory;
        Interval .spec.metricCollectPolicy.reportIntervalSeconds integer""",
    "NodeSLO": """BE-Thresholds .spec.resourceUsedThresholdWithBE.enable boolean;
        Suppress-CPU .spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent integer;
        Evict-Mem .spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent integer;
        CPU-Burst .spec.cpuBurstStrategy.policy; Age .metadata.creationTimestamp date""",
    "Device": "Type .spec.devices[0].type; Age .metadata.creationTimestamp date",
    "ElasticQuota": """Min-CPU .spec.min.cpu; Max-CPU .spec.max.cpu; Used-CPU .status.used.cpu;
        Max-Mem .spec.max.memory; Used-Mem .status.used.memory; Age .metadata.creationTimestamp date;
        Min-Mem .spec.min.memory""",
    "PodGroup": """Phase .status.phase; MinMember .spec.minMember integer; Scheduled .status.scheduled integer;
        Running .status.running integer; Succeeded .status.succeeded integer; Failed .status.failed integer;
        Age .metadata.creationTimestamp date""",
    "ClusterColocationProfile": """QoS .spec.qosClass; PriorityClass .spec.priorityClassName;
        SubPriority .spec.koordinatorPriority integer; Scheduler .spec.schedulerName; Probability .spec.probability;
        Age .metadata.creationTimestamp date""",
    "ElasticQuotaProfile": """Quota .spec.quotaName; Ratio .spec.resourceRatio;
        Age .metadata.creationTimestamp date""",
    "ScheduleExplanation": """Schedulable .status.schedulable boolean; Message .status.failedMessage;
        Age .metadata.creationTimestamp date""",
    "Reservation": """Phase .status.phase; Age .metadata.creationTimestamp date; Node .status.nodeName;
        TTL .spec.ttl; Expires .spec.expires""",
    "PodMigrationJob": """Phase .status.phase; Status .status.status; Age .metadata.creationTimestamp date;
        Node .status.nodeName; Reservation .spec.reservationOptions.reservationRef.name;
        PodNamespace .spec.podRef.namespace; Pod .spec.podRef.name; NewPod .status.podRef.name; TTL .spec.ttl""",
    "DrainNode": """Node .spec.nodeName; Phase .status.phase; Confirm .spec.confirmState;
        Moved .status.podMigrationSummary.Succeed integer; Moving .status.podMigrationSummary.Migrating integer;
        Planned .status.podMigrationSummary.Available integer;
        Unmigratable .status.podMigrationSummary.Unmigratable integer; Age .metadata.creationTimestamp date;
        Message .status.message""",
    "DrainNodeGroup": """Phase .status.phase; Total .status.total integer; Available .status.available integer;
        Running .status.running integer; Succeeded .status.succeeded integer; Failed .status.failed integer;
        Age .metadata.creationTimestamp date""",
    "Queue": "Policy .spec.queuePolicy; Priority .spec.priority integer; Age .metadata.creationTimestamp date",
    "QueueUnit": """Queue .spec.queue; Phase .status.phase; Quota .status.quota; Age .metadata.creationTimestamp date;
        Message .status.message""",
    "Recommendation": """Age .metadata.creationTimestamp date; Type .spec.target.type;
        Kind .spec.target.workload.kind; Name .spec.target.workload.name; LastUpdateTime .status.updateTime date""",
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_printer_columns(kind: str) -> None:
    columns = [
        (column["name"], column["jsonPath"], column["type"])
        for version in DOCUMENTS[kind]["spec"]["versions"]
        for column in version.get("additionalPrinterColumns", [])
    ]
    rows = [row.split() for row in COLUMNS.get(kind, "").split(";") if row.strip()]
    assert columns == [(name, path, *(rest or ["string"])) for name, path, *rest in rows]
    for _, path, _ in columns:
        if not path.startswith((".metadata", ".status.extensions.")):  # extensions are of no fixed form
            assert any(field in table_fields(kind) for field in alternatives(path))


def alternatives(path: str) -> set[str]:
    """How the specification may name the field: a list without its index, a map without its key."""
    field = path.removeprefix(".").replace("[0]", "[]")
    return {field, field.replace("[]", ""), field.rpartition(".")[0]}


def test_deployed_manifests_are_current() -> None:
    assert crdgen.differences(ROOT / "deploy" / "crds") == []


def test_kustomization_names_every_manifest() -> None:
    kustomization = yaml.safe_load((ROOT / "deploy" / "crds" / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == sorted(crdgen.documents())


def test_yaml_reads_back_as_the_documents(tmp_path: Path) -> None:
    crdgen.write(tmp_path)
    for name, document in crdgen.documents().items():
        assert yaml.safe_load((tmp_path / name).read_text()) == document


def test_check_reports_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crdgen.main(["--out", str(tmp_path)]) == 0
    assert crdgen.main(["--out", str(tmp_path), "--check"]) == 0
    (tmp_path / "slo.koordinator.sh_nodeslos.yaml").write_text("kind: Nothing\n")
    (tmp_path / "foreign.yaml").write_text("kind: Nothing\n")
    (tmp_path / "scheduling.koordinator.sh_devices.yaml").unlink()
    assert crdgen.main(["--out", str(tmp_path), "--check"]) == 1
    complaints = capsys.readouterr().err
    for name in ("nodeslos", "foreign", "devices"):
        assert name in complaints
    crdgen.write(tmp_path)
    assert crdgen.differences(tmp_path) == []


def test_a_field_without_a_schema_is_named() -> None:
    class Loose(Struct):
        data: dict[str, Any]

    with pytest.raises(SchemaError, match=r"Loose\.data"):
        root_schema(Loose)
