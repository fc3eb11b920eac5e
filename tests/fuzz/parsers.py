"""Parsers of tenant input and protocols: errors that they may raise, texts to begin from, how to make them longer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec
from hpack import HPACKError

from control.manager.trust.rule import refused_changes
from control.manager.trust.users import TrustedUsers
from control.manager.webhookserver.admission import BadReview, RequestUser, read_review
from control.standalone.errors import StatusError
from control.standalone.http.yamlbody import decode as decode_yaml
from control.standalone.patch.json_patch import JsonPatchError
from control.standalone.patch.json_patch import apply as apply_json_patch
from control.standalone.selectors import field_terms, parse_labels
from control.standalone.streams.spdy import FrameDecoder, SpdyError
from koordlet.api import names
from koordlet.api.annotations import device, gang, pod, reservation, scheduling
from koordlet.api.core import Pod
from koordlet.api.cpus import CPUListError, parse_cpus
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.times import Duration
from koordlet.api.encoding.wire import WireError
from koordlet.api.encoding.wire import decode as decode_pod
from koordlet.api.meta import ObjectMeta
from koordlet.api.priority import PriorityError, sub_priority
from koordlet.app.http2.frames import FrameError, Splitter
from koordlet.app.http2.headers import HeaderDecoder
from koordlet.kube.connections import RECEIVED_BYTES, _Connection
from koordlet.kube.errors import from_response
from koordlet.statesinformer.pods.deviceallocation import devices_of_pod
from koordlet.statesinformer.pods.longpods import reduced
from koordlet.system.cgroup.naming import ContainerId, NamingError
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError
from runtimeproxy.docker.http1 import NotHttp1, parse_request
from runtimeproxy.hooks.registry import InvalidRegistration
from runtimeproxy.hooks.registry import parse as parse_registration

TENANT = RequestUser(username="tenant")
USERS = TrustedUsers()
_SOCKET = socket.socket()


@dataclass(frozen=True)
class Parser:
    """`parse` returns or raises one of `errors`. `repeated` is the part that is repeated to make an input longer."""

    parse: Callable[[str], object]
    errors: tuple[type[Exception], ...]
    corpus: tuple[str, ...]
    repeated: tuple[str, ...]


def _annotation(read: Callable[[Mapping[str, str]], object], key: str, *corpus: str) -> Parser:
    repeated = ("[", '{"a":', '"a",', "0-9,", "9", "\\u0000", " ", '{"a":1,"a":1},')
    return Parser(lambda text: read({key: text}), (WireError,), ("{}", "[]", "null", *corpus), repeated)


def _devices(text: str) -> object:
    return devices_of_pod(Pod(metadata=ObjectMeta(annotations={names.ANNOTATION_DEVICE_ALLOCATED: text})))


def _trusted(text: str) -> object:
    values = {names.ANNOTATION_OOM_SCORE_ADJ_SPEC: text, names.ANNOTATION_EXTENDED_RESOURCE_SPEC: text}
    return refused_changes(Pod(metadata=ObjectMeta(annotations=values)), None, TENANT, USERS)


def _json_patch(text: str) -> object:
    try:
        operations = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if not isinstance(operations, list) or not all(isinstance(each, dict) for each in operations):
        return None
    return apply_json_patch({"a": [1, {"b": "c"}]}, operations)


class _NoTransport(asyncio.Transport):
    """A connection without a peer."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _SOCKET

    def abort(self) -> None:
        pass


def _octets(text: str) -> bytes:
    """A byte per character, for formats that are no text."""
    return text.encode("latin-1", errors="replace")


def _answer(text: str) -> object:
    """An answer to `Connections`: it completes the request or fails it."""
    connection = _Connection()
    connection._answer = Future()  # type: ignore[assignment]  # without an event loop
    connection.connection_made(_NoTransport())
    received = _octets(text)
    for start in range(0, len(received), RECEIVED_BYTES):
        part = received[start : start + RECEIVED_BYTES]
        connection.get_buffer(len(part))[: len(part)] = part
        connection.buffer_updated(len(part))
    return connection


def _refusal(text: str) -> object:
    value, _, body = text.partition("\n")
    return from_response(503, {"retry-after": value}, body.encode(errors="replace"), now=0.0)


def _long_pod(text: str) -> object:
    pod, _ = reduced(text.encode(errors="surrogatepass"))
    return decode_pod(pod, Pod)


PARSERS: dict[str, Parser] = {
    "cpu list": Parser(parse_cpus, (CPUListError,), ("0-3", "0,2-4", ""), ("0,", "0-1,", "-", "9", " ")),
    "koordlet's CPU list": Parser(
        CPUSet.parse, (CPUSetError,), ("0-3", "0,2-4", "0-1,1000-2000"), ("0,", "0-1,", "0-9999,", "-", "9", "\uff11,")
    ),
    "allocated devices": Parser(
        _devices, (), ('{"gpu":[{"minor":0}]}', '{"rdma":[{"minor":0,"extension":{"vfs":[{"busID":"a"}]}}]}'),
        ('{"minor":0},', "[", '{"gpu":', "9"),
    ),
    "container id": Parser(ContainerId.parse, (NamingError,), ("containerd://a", "docker://../b"), ("/", "a", ":")),
    "quantity": Parser(Quantity, (QuantityError,), ("1", "1.5Gi", "1e3", "-1m"), ("9", "0", ".", "e", "-")),
    "duration": Parser(Duration, (ValueError,), ("1h2m", "1.5s"), ("1h", "9", ".", "-")),
    "sub-priority": Parser(
        lambda text: sub_priority({names.LABEL_PRIORITY: text}), (PriorityError,), ("5", "0x1f", "-1"), ("9", "_", "0")
    ),
    "label selector": Parser(parse_labels, (StatusError,), ("a=b", "a in (b,c)", "!a"), ("a,", "(", "a in (b),", "!")),
    "field selector": Parser(field_terms, (StatusError,), ("a=b", "a!=b\\,c"), ("a=b,", "\\", ",", "(")),
    "YAML body": Parser(
        lambda text: decode_yaml(text.encode(errors="surrogatepass")), (StatusError,),
        ("a: 1", "- a\n- b: [1, {c: d}]", "a: &x 1\nb: *x", "--- |\n text"),
        ("[", "{", "- ", "? ", "&a ", "a: ", '"', "\n", "!!x "),
    ),
    "JSON patch": Parser(
        _json_patch, (JsonPatchError,),
        ('[{"op":"add","path":"/a/0","value":1}]', '[{"op":"move","from":"/a","path":"/b"}]'), ("[", '{"op":', "/"),
    ),
    "review": Parser(
        lambda text: read_review(text.encode(errors="surrogatepass")), (BadReview,),
        ('{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u"}}',), ("[", '{"a":', '"'),
    ),
    "trusted keys": Parser(
        _trusted, (), ('{"c":-1}', '{"containers":{"c":{"requests":{"x":"1"}}}}'), ('{"c":', "[", "1")
    ),
    "resource-status": _annotation(
        scheduling.RESOURCE_STATUS.get, names.ANNOTATION_RESOURCE_STATUS, '{"cpuset":"0-3","numaNodeResources":[]}'
    ),
    "resource-spec": _annotation(scheduling.RESOURCE_SPEC.get, names.ANNOTATION_RESOURCE_SPEC),
    "device-allocated": _annotation(
        device.ALLOCATED.get, names.ANNOTATION_DEVICE_ALLOCATED, '{"gpu":[{"minor":0,"resources":{"a":"1"}}]}'
    ),
    "gpu-partition-spec": _annotation(device.gpu_partition_spec, names.ANNOTATION_GPU_PARTITION_SPEC),
    "reservation-affinity": _annotation(
        reservation.AFFINITY.get, names.ANNOTATION_RESERVATION_AFFINITY, '{"name":"r"}'
    ),
    "oom-score-adj-spec": _annotation(pod.oom_scores, names.ANNOTATION_OOM_SCORE_ADJ_SPEC, '{"c":5}'),
    "cpuQOS": _annotation(pod.cpu_qos, names.ANNOTATION_CPU_QOS, '{"groupIdentity":2}'),
    "networkQOS": _annotation(pod.network_limits, names.ANNOTATION_NETWORK_QOS, '{"ingressLimit":"10M"}'),
    "cpuBurst": _annotation(pod.CPU_BURST.get, names.ANNOTATION_CPU_BURST, '{"policy":"auto"}'),
    "memoryQOS": _annotation(pod.MEMORY_QOS.get, names.ANNOTATION_MEMORY_QOS, '{"policy":"auto"}'),
    "blkioQOS": _annotation(pod.BLKIO_QOS.get, names.ANNOTATION_BLKIO_QOS, '{"blocks":[{"name":"d"}]}'),
    "resctrl": _annotation(pod.RESCTRL.get, names.ANNOTATION_RESCTRL, '{"mb":{"schemata":{"percent":30}}}'),
    "extended-resource-spec": _annotation(
        pod.EXTENDED_RESOURCE_SPEC.get, names.ANNOTATION_EXTENDED_RESOURCE_SPEC,
        '{"containers":{"c":{"limits":{"kubernetes.io/batch-cpu":"1e30"}}}}',
    ),
    "device-allocate-hint": _annotation(
        device.ALLOCATE_HINT.get, names.ANNOTATION_DEVICE_ALLOCATE_HINT,
        '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}}',
    ),
    "scheduling-hint": _annotation(
        scheduling.scheduling_hint, names.ANNOTATION_SCHEDULING_HINT, '{"nodeNames":["a"],"extensions":{}}'
    ),
    "network-topology-spec": _annotation(
        gang.NETWORK_TOPOLOGY_SPEC.get, names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC,
        '{"gatherStrategy":[{"layer":"a","strategy":"MustGather"}]}',
    ),
    "gang groups": _annotation(
        lambda annotations: gang.groups(annotations, "ns/g"), names.ANNOTATION_GANG_GROUPS, '["ns/a","ns/b"]'
    ),
    "answer of the API server": Parser(
        _answer, (),
        ("HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na"),
        ("HTTP/1.1 100 Continue\r\n\r\n", "a: b\r\n", "\r\n", "1\r\na\r\n"),
    ),
    "refusal of the API server": Parser(
        _refusal, (), ("5\n", 'Sun, 29 Nov 2026 06:13:08 GMT\n{"kind":"Status","message":"m"}'), ("9", " ", "0:", "\n[")
    ),
    "long pod": Parser(
        _long_pod, (WireError,),
        ('{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]},"status":{"containerStatuses":[{"name":"c"}]}}',),
        ("[", '{"a":', '"a",', "1,"),
    ),
    "SPDY frames": Parser(
        lambda text: FrameDecoder().feed(_octets(text)), (SpdyError,),
        ("\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01", "\x00\x00\x00\x01\x01\x00\x00\x02ab"),
        ("\x00\x00\x00\x01\x00\x00\x00\x00",),
    ),
    "HTTP/2 frames": Parser(
        lambda text: Splitter().feed(_octets(text)), (FrameError,),
        ("\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x01\x01\x04\x00\x00\x00\x01a"),
        ("\x00\x00\x00\x04\x00\x00\x00\x00\x00",),
    ),
    "HTTP/2 headers": Parser(
        lambda text: HeaderDecoder(1 << 16).decode(_octets(text)), (HPACKError,),
        ("\x82\x86", "\x00\x01a\x01b"), ("\x82", "\x00\x01a\x01b", "\x7f"),
    ),
    "request to Docker": Parser(
        lambda text: parse_request(_octets(text)), (NotHttp1,),
        ("GET / HTTP/1.1\r\na: b\r\n\r\n",), ("a: b\r\n", "\r\n", " "),
    ),
    "registration of a hook server": Parser(
        lambda text: parse_registration("f", text.encode(errors="surrogatepass")), (InvalidRegistration,),
        ('{"remote-endpoint":"unix:///a","runtime-hooks":["PreRunPodSandbox"]}',), ("[", '{"a":', '"a",'),
    ),
}  # fmt: skip
"""Name -> parser."""
