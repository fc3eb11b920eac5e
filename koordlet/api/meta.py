"""Object metadata and other types common to all Kubernetes objects (apimachinery meta/v1).

Trimmed to the fields that are read or written here. `managedFields`, the largest part of many objects, is dropped on
decoding.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc
from koordlet.api.encoding.wire import Time

_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_PREFIX = 253
_MAX_NAME = 63


class SelectorError(ValueError):
    """A label selector that apimachinery refuses; the message names the invalid part."""


@lru_cache(maxsize=4096)
def is_label_key(key: str) -> bool:
    """Whether `key` is a qualified name: `name`, or `prefix/name` with a DNS subdomain as prefix."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _MAX_PREFIX and _LABEL_PREFIX.fullmatch(prefix)):
        return False
    return len(name) <= _MAX_NAME and _LABEL_NAME.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def is_label_value(value: str) -> bool:
    """Whether `value` is a valid label value; it may be empty."""
    return not value or (len(value) <= _MAX_NAME and _LABEL_NAME.fullmatch(value) is not None)


class OwnerReference(Struct):
    """The owner of an object, used by the garbage collector."""

    api_version: Annotated[str, doc("API version of the owner.")]
    kind: Annotated[str, doc("Kind of the owner.")]
    name: Annotated[str, doc("Name of the owner.")]
    uid: Annotated[str, doc("UID of the owner.")]
    controller: Annotated[bool | None, doc("Whether the owner is the managing controller.")] = None
    block_owner_deletion: Annotated[
        bool | None, doc("Whether a foreground deletion of the owner waits for this object.")
    ] = None


class ObjectMeta(Struct):
    """`metadata` of an object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for a cluster-scoped object; the key in informers and queues."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class ApiObject(Struct):
    """A top-level object: `class Pod(ApiObject, api_version="v1")`. Its kind is the name of the class, or `kind` in the
    class statement. Both fields are always written."""

    kind: str = ""
    api_version: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    if TYPE_CHECKING:

        def __init_subclass__(cls, *, api_version: str, kind: str = "", **config: Any) -> None: ...


class ListMeta(Struct):
    """`metadata` of a list: the resourceVersion to watch from, and the token of the next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class ObjectReference(Struct):
    """A reference to any object, wholly optional (core/v1)."""

    api_version: Annotated[str, doc("API version of the referent.")] = ""
    field_path: Annotated[str, doc("Part of the referent, as a field path.")] = ""
    kind: Annotated[str, doc("Kind of the referent.")] = ""
    name: Annotated[str, doc("Name of the referent.")] = ""
    namespace: Annotated[str, doc("Namespace of the referent.")] = ""
    resource_version: Annotated[str, doc("Resource version of the referent.")] = ""
    uid: Annotated[str, doc("UID of the referent.")] = ""


class LabelSelectorRequirement(Struct):
    """One expression of a label selector."""

    key: Annotated[str, doc("Label key.")]
    operator: Annotated[str, doc("In, NotIn, Exists or DoesNotExist.")]
    values: Annotated[
        list[str],
        doc("Values for In and NotIn; empty for Exists and DoesNotExist.", list_type="atomic"),
    ] = []

    def validate(self) -> None:
        """Raises SelectorError when the expression is invalid."""
        if not is_label_key(self.key):
            raise SelectorError(f"matchExpressions[{self.key}]: {self.key!r} is not a valid label key")
        for value in self.values:
            if not is_label_value(value):
                raise SelectorError(f"matchExpressions[{self.key}]: {value!r} is not a valid label value")
        match self.operator:
            case "In" | "NotIn":
                if not self.values:
                    raise SelectorError(f"matchExpressions[{self.key}]: {self.operator} needs values")
            case "Exists" | "DoesNotExist":
                if self.values:
                    raise SelectorError(f"matchExpressions[{self.key}]: {self.operator} takes no values")
            case _:
                raise SelectorError(
                    f"matchExpressions[{self.key}]: {self.operator!r} is not a valid label selector operator"
                )

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy the expression, which must be valid."""
        present = self.key in labels
        if self.operator in ("In", "NotIn"):
            # A missing key satisfies NotIn, as in apimachinery.
            return (present and labels[self.key] in self.values) == (self.operator == "In")
        return present == (self.operator == "Exists")


class LabelSelector(Struct):
    """Labels and expressions, all of which must hold. `{}` matches everything; the meaning of an absent selector
    depends on the field (it matches nothing unless stated otherwise: spec 01 §3.2)."""

    match_labels: Annotated[dict[str, str], doc("Labels that must be present with these values.")] = {}
    match_expressions: Annotated[
        list[LabelSelectorRequirement], doc("Expressions that must hold as well.", list_type="atomic")
    ] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy every part.

        Raises SelectorError for an invalid label or expression even if an earlier part does not match, so that an
        invalid selector is always reported.
        """
        self.validate()
        return self.holds(labels)

    def validate(self) -> None:
        """Raises SelectorError for an invalid label or expression."""
        for key, value in self.match_labels.items():
            if not is_label_key(key):
                raise SelectorError(f"matchLabels[{key}]: {key!r} is not a valid label key")
            if not is_label_value(value):
                raise SelectorError(f"matchLabels[{key}]: {value!r} is not a valid label value")
        for expression in self.match_expressions:
            expression.validate()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy every part of the selector, which must be valid."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.holds(labels) for expression in self.match_expressions
        )

    def is_empty(self) -> bool:
        """Whether the selector is `{}`."""
        return not self.match_labels and not self.match_expressions


class Condition(Struct):
    """meta/v1 Condition."""

    type: Annotated[str, doc("Type of the condition.", max_length=316)]
    status: Annotated[str, doc("Status of the condition.", enum=("True", "False", "Unknown"))]
    observed_generation: Annotated[
        int, doc("The metadata.generation that the condition was computed from.", minimum=0)
    ] = 0
    last_transition_time: Annotated[Time, doc("When the status last changed.")]
    reason: Annotated[
        str,
        doc(
            "Reason of the last transition, in CamelCase.",
            min_length=1,
            max_length=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, doc("What happened, for people.", max_length=32768)]


class StatusCause(Struct):
    """One reason inside an API error."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct):
    """The object that an API error refers to."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: Int32 = 0


class Status(Struct):
    """meta/v1 Status: the API server's response for errors and some successes."""

    kind: str = msgspec.field(default_factory=lambda: "Status")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: Int32 = 0


class Preconditions(Struct):
    """Preconditions of a deletion."""

    uid: Annotated[str | None, doc("UID that the object must have.")] = None
    resource_version: Annotated[str | None, doc("Resource version that the object must have.")] = None


class DeleteOptions(Struct):
    """Options of a deletion; also the body of an eviction and of PodMigrationJob.spec.deleteOptions."""

    kind: Annotated[str, doc("Always DeleteOptions, or empty.")] = ""
    api_version: Annotated[str, doc("API version of the options.")] = ""
    grace_period_seconds: Annotated[int | None, doc("Seconds before the object is deleted; 0 deletes at once.")] = None
    preconditions: Annotated[Preconditions | None, doc("Preconditions of the deletion.")] = None
    orphan_dependents: Annotated[bool | None, doc("Deprecated: use propagationPolicy.")] = None
    propagation_policy: Annotated[str | None, doc("Orphan, Background or Foreground.")] = None
    dry_run: Annotated[list[str], doc("`All` to process without persisting.", list_type="atomic")] = []
    ignore_store_read_error_with_cluster_breaking_potential: Annotated[
        bool | None, doc("Whether an object that cannot be read from the store is deleted all the same.")
    ] = None
