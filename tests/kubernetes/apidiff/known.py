# ruff: noqa: E501
"""What differs between the embedded API server and kube-apiserver: on purpose, and still.

A row is (calls, places, reason): patterns of `table/call` and of places in the answer, separated by `|`. A row that
matches nothing is stale and fails the test. docs/apiserver.md lists the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """`calls` and `places` are shell patterns. A row for the status covers the whole body of its calls."""

    calls: str
    places: str
    reason: str

    def covers(self, call: str, place: str) -> bool:
        if self.places == STATUS:
            return _matches(call, self.calls)
        return _matches(call, self.calls) and _matches(place, self.places)


def _matches(text: str, patterns: str) -> bool:
    literal = text.replace("[", "(").replace("]", ")")  # brackets are no sets of characters here
    return any(fnmatchcase(literal, pattern) for pattern in patterns.split("|"))


STATUS = "status"
MESSAGE = "body.message|body.details.causes*.message"
CAUSES = "body.message|body.details.causes*"
ANY = "*"

DELIBERATE = (
    KnownDifference(ANY, "body*columnDefinitions*description", "columns have short descriptions of their own"),
    KnownDifference(
        "crud/create with another *|crud/create with an unknown kind|crud/create from *|crud/delete with another kind"
        "|crud/delete with bad options|crud/get from a bad version|patches/merge a list|patches/merge broken"
        "|patches/json object|patches/apply broken yaml|pods/invalid: wrong *|pods/port-forward to no port|lists/bad *|lists/open set"
        "|lists/watch with bad timeout|protocol/impersonate a group only|custom/widget without kind|protocol/token review of a wrong token",
        MESSAGE + "|body.status.error",
        "messages about malformed input name the field or position, not Go's types, parsers and source lines",
    ),
    KnownDifference(
        "patches/json test fails|patches/json removes nothing|patches/json adds below nothing|patches/patch *",
        MESSAGE + "|header.*",
        "a refused patch says which operation failed or which types are accepted",
    ),
    KnownDifference(
        "patches/merge a wrong *|patches/merge a kind|patches/merge an unknown field, strict|patches/json wrong value"
        "|patches/json unknown operation|patches/merge a uid",
        STATUS,
        "a patch to an invalid object gets the code and message of the same PUT, not 422 with the whole object in it",
    ),
    KnownDifference(
        "crud/update with a bad version|patches/strategic without merge key|patches/strategic with a bad directive"
        "|patches/apply wrong type|lists/watch from a bad version|pods/bind to *",
        STATUS,
        "a mistake of the client is answered with 4xx where kube-apiserver answers 500",
    ),
    KnownDifference(
        "crud/update with another uid|pods/bind with another uid|crud/delete with another *",
        MESSAGE + "|body.details.kind",
        "conflicts name the resource and both values, not the storage layer and its keys",
    ),
    KnownDifference(
        "pods/invalid: bad quantity",
        STATUS,
        "a malformed quantity is an error of its field (422), not of the body (400)",
    ),
    KnownDifference(
        "patches/strategic forbidden|pods/change the node|pods/change the grace period|patches/strategic added container",
        MESSAGE + "|body.details.causes*.field",
        "a forbidden change of a pod is reported without a listing of both specs",
    ),
    KnownDifference(
        "kinds/* PersistentVolume*",
        "body*.finalizers|body*.lastPhaseTransitionTime|body.metadata.deletion*",
        "there are no volume controllers that would remove the protection finalizers",
    ),
    KnownDifference(
        "kinds/*Node v1*", "body.spec.taints", "a new node is not tainted not-ready: tests make bare nodes"
    ),
    KnownDifference(
        "kinds/*Service v1*",
        "body.spec.clusterIP*|body.spec.ipFamil*|body.rows(0).cells(2)",
        "Services get no cluster IP: nothing here routes to one",
    ),
    KnownDifference(
        "kinds/*DaemonSet*", "body*annotations*|body*managedFields*", "the deprecated template generation is not kept"
    ),
    KnownDifference(
        "protocol/*version", "body.*|final newline", "the version names this server; it implements a later Kubernetes"
    ),
    KnownDifference(
        "protocol/unknown path|protocol/unknown group|protocol/unknown resource in an unknown group"
        "|protocol/openapi unknown group",
        "body|header.Content-Type|final newline",
        "an unknown path is answered with a Status object, not with plain text",
    ),
    KnownDifference(
        "custom/invalid: *",
        CAUSES,
        "errors about a CRD's schema have the path in the document, not that of an internal version",
    ),
    KnownDifference(
        "invalid/secret of a wrong registry's", MESSAGE, "the text about malformed JSON is not that of Go's parser"
    ),
    KnownDifference(
        "custom/create|custom/established|custom/table|custom/ours*|custom/delete the definition",
        "body*.finalizers|body.status.*|body.metadata.*|body*managedFields*",
        "a CRD's finalizer and accepted names are set by the server in the same moment, not by a controller",
    ),
    KnownDifference(
        "custom/invalid widget*",
        CAUSES,
        "errors about custom objects name the field, not <nil>, and not the failures of alternatives",
    ),
    KnownDifference(
        "crud/get from the future|lists/future version",
        "header.Retry-After|body.details.retryAfterSeconds",
        "a version of the future says when to retry, as kube-apiserver does with its watch cache",
    ),
    KnownDifference("protocol/basic authentication", STATUS, "an unknown credential is refused, not ignored"),
    KnownDifference("pods/log of an unbound pod", STATUS, "a log needs a node"),
    KnownDifference(
        "pods/* at an absent node", "body.message|body.details.kind", "the error names the node, not a pod of its name"
    ),
    KnownDifference("crud/get pretty", "final newline", "responses are never indented"),
    KnownDifference(
        "crud/get as html|crud/get as an unknown form",
        MESSAGE + "|final newline|body.details",
        "objects are sent as JSON only, and the message says so",
    ),
    KnownDifference("crud/unknown method", STATUS, "the HTTP library refuses unknown methods"),
    KnownDifference("crud/create with generateName", CAUSES + "|body.details.name", "the generated name is random"),
    KnownDifference("protocol/api", ANY, "the address of /api is that of the kubeconfig"),
    KnownDifference(
        "protocol/token*", "body.status.audiences*|body.spec.audiences*", "the issuer's name is another one"
    ),
    KnownDifference("custom/widget scale", STATUS, "a scale without spec.replicas is zero"),
)
OPEN = (
    KnownDifference(
        "crud/create duplicate field, *", STATUS, "duplicate keys of JSON are not reported"
    ),
    KnownDifference("crud/list as metadata of one", STATUS, "a list is sent for PartialObjectMetadata too"),
    KnownDifference("crud/add a finalizer in deletion", CAUSES, "the error is reported twice by kube-apiserver"),
    KnownDifference("patches/strategic toleration", STATUS, "tolerations of pods are replaced, not added"),
    KnownDifference("lists/watch with a continue", STATUS, "a watch with a continue token is accepted"),
    KnownDifference(
        "kinds/* Event v1 empty|kinds/* Event events.k8s.io/v1 empty|kinds/* PersistentVolume* empty"
        "|kinds/* HorizontalPodAutoscaler * empty|kinds/* Ingress * empty|kinds/* RuntimeClass * empty"
        "|kinds/* VolumeAttachment * empty|kinds/label ControllerRevision*|pods/bad rolling update"
        "|pods/ephemeral container of a taken name|pods/resize|pods/invalid: bad overhead"
        "|pods/invalid: missing runtime class",
        STATUS,
        "kinds and fields that this project does not use are validated by their schema only",
    ),
    KnownDifference(
        "kinds/create * empty", CAUSES + "|body.rules|body.value|body.spec.limits|body.status.*|body.spec.podSelector",
        "required lists and numbers that are absent are not sent as null or 0",
    ),
    KnownDifference(
        "kinds/* CSIDriver*|kinds/* CSINode*|kinds/*StorageClass*|kinds/*VolumeAttachment*",
        "body*",
        "storage kinds have no defaults and fewer columns",
    ),
    KnownDifference("pods/valid: zero values", "body*", "false and empty strings are stored as they were sent"),
    KnownDifference(
        "kinds/* CronJob*|kinds/* Job*|kinds/* Event events.k8s.io/v1*|pods/get scaled|patches/*|custom/*",
        "body*managedFields*",
        "managedFields of Jobs, scale and converted Events name other fields",
    ),
    KnownDifference(
        "invalid/pod: projected sources of nothing|invalid/pod: unnamed pull secret",
        "warnings|body*managedFields*",
        "no warnings about values that are accepted but have no effect",
    ),
    KnownDifference("kinds/* CronJob*", "body.columnDefinitions*", "the type of a column"),
    KnownDifference("kinds/get Event events.k8s.io/v1 as a table", "body.rows*", "the source of an Event"),
    KnownDifference("kinds/delete Job*", "warnings", "no warning that the pods of a deleted Job stay"),
    KnownDifference("kinds/label EndpointSlice*", "body.metadata.generation", "labels count in its generation"),
    KnownDifference(
        "pods/get resize|pods/*evicted|pods/delete at once", "body*", "follows from pods/resize, which succeeded here"
    ),
    KnownDifference("pods/log of an absent node", "body*", "the error names the node"),
    KnownDifference("custom/widget of another kind", STATUS, "another kind is 400 for custom kinds too"),
    KnownDifference("custom/widget of another version", "warnings", "unknown fields of another version"),
    KnownDifference("custom/update widget without version", "body*", "the error names the kind"),
    KnownDifference("custom/discovery of the version", "body*", "other order of verbs and another storage hash"),
    KnownDifference("custom/list widgets|custom/delete widgets", "body.metadata.continue", "an empty continue token"),
    KnownDifference("custom/watch widgets as a table", "body*", "a table watch of custom kinds"),
    KnownDifference(
        "protocol/*review*|protocol/token*|protocol/who am I", "body.metadata*|body.spec.boundObjectRef|body.spec.namespace",
        "reviews and tokens have no metadata of their own",
    ),
    KnownDifference("protocol/*review*", CAUSES + "|body.details.kind", "texts about invalid reviews"),
    KnownDifference("protocol/rules review", "body.status*", "rules are merged"),
    KnownDifference(
        "protocol/rules review without a namespace|protocol/token review of nothing", STATUS,
        "an empty review is answered",
    ),
    KnownDifference("protocol/tenant gets metrics|protocol/anonymous discovery", "body.details", "empty details"),
)  # fmt: skip

CLIENT = (
    KnownDifference("client/patch_namespaced_pod", "result.body.message|result.body.details.causes*.message", "a forbidden change of a pod is reported without a listing of both specs"),
    KnownDifference("client/list_namespaced_pod", "result.body.message", "an invalid selector is quoted with what was expected"),
    KnownDifference("client/*_namespaced_service", "result.spec.clusterIPs|result.spec.ipFamil*", "Services get no cluster IP: nothing here routes to one"),
    KnownDifference("client/create_node|client/patch_node_status", "result.spec.taints", "Nodes get no taint until they are ready"),
    KnownDifference("client/*_namespaced_deployment*", "result*managedFields*.time", "times of entries that kube-apiserver leaves out"),
    KnownDifference("client/create_namespaced_daemon_set", "result.metadata*", "no annotation of the template's generation"),
    KnownDifference("client/*_namespaced_job", "result.metadata.managedFields*", "fields that were defaulted to false are not owned"),
    KnownDifference("client/patch_namespaced_role_binding", "result.body*", "an immutable field is named without the new value"),
    KnownDifference("client/create_*review|client/create_namespaced_service_account_token", "result.metadata*", "reviews and tokens have no metadata of their own"),
    KnownDifference("client/create_token_review", "result.status.audiences*", "the servers of this test have different issuers"),
    KnownDifference("client/create_custom_resource_definition", "result.metadata.finalizers|result.status*", "a definition is established at once, not by a controller"),
    KnownDifference("client/list_namespaced_custom_object", "result.metadata.continue", "an empty continue token"),
)  # fmt: skip
"""Of the official client's calls (cases/client.py): open ones, and consequences of the deliberate ones above."""
