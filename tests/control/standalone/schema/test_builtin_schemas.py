"""Schemas of built-in kinds: read, published, and shown by the OpenAPI documents."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.standalone.kinds import BUILTIN, Kinds, ResourceKind
from control.standalone.schema import KindSchemas, facts
from control.standalone.schema.builtin import Builtins, public_name
from control.standalone.schema.models import INT_OR_STRING, QUANTITY, BuiltinModels, ModelError
from tests.present import present

BUILTINS = Builtins()
POD = present(BUILTINS.schema("", "v1", "Pod"))


def test_the_text_reading_agrees_with_the_imported_classes() -> None:
    """The same fields, JSON names and required fields, for all definitions of Pod and Deployment."""
    models = BuiltinModels()
    package = importlib.import_module("kubernetes.client.models")
    names = [n for n in models.closure(["V1Pod", "V1Deployment", "V1CustomResourceDefinition"])
             if n not in (QUANTITY, INT_OR_STRING)]  # fmt: skip
    assert len(names) > 150
    for name in names:
        cls = getattr(package, name)
        definition = models.get(name)
        assert set(definition["properties"]) == set(cls.attribute_map.values()), name
        fields = {field.serialization_alias or python: field for python, field in cls.model_fields.items()}
        required = {json_name for json_name, field in fields.items() if field.is_required()}
        assert set(definition.get("required", ())) == required, name
        for json_name, field in fields.items():
            if field.description:
                assert definition["properties"][json_name]["description"] == field.description


@pytest.mark.parametrize("kind", BUILTIN, ids=lambda kind: kind.key)
def test_every_served_kind_has_a_schema_and_a_definition(kind: ResourceKind) -> None:
    for version in kind.versions:
        assert BUILTINS.schema(kind.group, version, kind.kind) is not None
        definition = BUILTINS.definitions()[public_name(kind.group, version, kind.kind)]
        gvk = {"group": kind.group, "version": version, "kind": kind.kind}
        assert gvk in definition["x-kubernetes-group-version-kind"]
        assert definition["description"]


@pytest.mark.parametrize("table", [facts.MERGE, facts.ENUMS, facts.DEFAULTS, facts.QUANTITIES, facts.ATOMIC_FIELDS])
def test_facts_are_about_fields_that_exist(table: dict[str, Any] | frozenset[str]) -> None:
    for key in table:
        name, field = key.split(".")
        assert field in BUILTINS.models.get(name)["properties"], key


def test_atomic_objects_exist() -> None:
    assert all(BUILTINS.models.has(name) for name in facts.ATOMIC_OBJECTS)


def test_merge_information_reaches_the_walker() -> None:
    containers = present(POD.field("spec")).field("containers")
    assert containers is not None
    assert (containers.list_type, containers.list_map_keys) == ("map", ("name",))
    assert (containers.patch_strategies, containers.patch_merge_key) == (frozenset({"merge"}), "name")
    ports = containers.element().field("ports")
    assert ports is not None
    assert ports.item_key({"containerPort": 80}) == 'k:{"containerPort":80,"protocol":"TCP"}'
    assert present(present(POD.field("spec")).field("tolerations")).list_type == "atomic"
    assert present(present(POD.field("spec")).field("nodeSelector")).atomic_map
    assert present(present(present(POD.field("metadata")).field("labels")).field("any")).type == "string"
    assert present(POD.field("spec")).field("nonsense") is None


def test_every_reference_has_a_definition() -> None:
    definitions = BUILTINS.definitions()

    def refs(schema: dict[str, Any] | str | list[Any]) -> Iterator[str]:
        if isinstance(schema, dict):
            for key, value in schema.items():
                if key == "$ref" and isinstance(value, str):
                    yield value
                else:
                    yield from refs(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from refs(value)

    assert {ref.removeprefix("#/definitions/") for ref in refs(definitions)} <= definitions.keys()


def test_an_unknown_model_and_a_missing_package_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model class V1Nonsense"):
        BuiltinModels().get("V1Nonsense")
    with pytest.raises(ModelError, match=str(tmp_path)):
        BuiltinModels(tmp_path)
    (tmp_path / "v1_pod.py").write_text("class V1Pod:\n    pass\n")
    with pytest.raises(ModelError, match=r"v1_pod\.py: no class V1Pod"):
        BuiltinModels(tmp_path).get("V1Pod")


CRD = {
    "spec": {
        "group": "example.org",
        "names": {"kind": "Thing", "plural": "things"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object", "description": "A thing.", "properties": {"spec": {
                "type": "object", "properties": {"size": {"type": "integer", "nullable": True}}}}}}}],
    }
}  # fmt: skip
THING = ResourceKind("example.org", ("v1",), "Thing", "things", "thing", custom=True, crd=CRD, status=True)


@pytest.fixture
def kinds() -> Kinds:
    return Kinds()


def test_v3_has_what_kubectl_reads(kinds: Kinds) -> None:
    documents = KindSchemas(BUILTINS).openapi(kinds)
    index = documents.v3_index()["paths"]
    assert index["apis/apps/v1"]["serverRelativeURL"].startswith("/openapi/v3/apis/apps/v1?hash=")
    assert "api/v1" in index
    document = json.loads(documents.v3("apis/apps/v1"))  # type: ignore[arg-type]
    patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert {"fieldValidation", "dryRun", "force"} <= {parameter["name"] for parameter in patch["parameters"]}
    scale = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["get"]
    assert scale["x-kubernetes-group-version-kind"]["kind"] == "Scale"
    schemas = document["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    resources = schemas["io.k8s.api.core.v1.Container"]["properties"]["resources"]
    assert resources["allOf"] == [{"$ref": "#/components/schemas/io.k8s.api.core.v1.ResourceRequirements"}]
    assert resources["description"]
    assert documents.v3("apis/nonsense/v1") is None


def test_custom_kinds_are_added_to_and_removed_from_the_documents(kinds: Kinds) -> None:
    documents = KindSchemas(BUILTINS).openapi(kinds)
    assert documents.v3("apis/example.org/v1") is None
    before = documents.v2()
    kinds.add(THING)
    thing = json.loads(documents.v3("apis/example.org/v1"))["components"]["schemas"]["org.example.v1.Thing"]  # type: ignore[arg-type]
    assert thing["description"] == "A thing."
    assert thing["properties"]["spec"]["properties"]["size"]["nullable"] is True
    assert thing["properties"]["metadata"]["allOf"][0]["$ref"].endswith("ObjectMeta")
    v2 = json.loads(documents.v2())["definitions"]["org.example.v1.Thing"]
    assert v2["properties"]["spec"]["properties"]["size"] == {}  # null is valid here, which v2 has no keyword for
    kinds.discard(THING.key)
    assert documents.v3("apis/example.org/v1") is None
    assert documents.v2() == before
