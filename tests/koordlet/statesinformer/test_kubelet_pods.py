"""Pods from a kubelet over real TLS: what is kept when it is away, restarting or talking nonsense."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram

from koordlet.api.core import DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeStatus, Pod
from koordlet.api.meta import ObjectMeta
from koordlet.api.sloconfig import CgroupPath, HostApplicationSpec
from koordlet.app.periodic import Periodic
from koordlet.statesinformer.pods import kubelet as kubelet_module
from koordlet.statesinformer.pods import listbatches
from koordlet.statesinformer.pods.decodeallowance import BYTES_PER_ANSWER, MAX_BYTES
from koordlet.statesinformer.pods.earlytrigger import EarlyTrigger
from koordlet.statesinformer.pods.informer import PodsInformer
from koordlet.statesinformer.pods.kubelet import KubeletClient, KubeletError, kubelet_url
from koordlet.statesinformer.pods.kubelettls import KubeletVerification
from koordlet.statesinformer.pods.longpods import MAX_CONTAINERS
from koordlet.statesinformer.pods.model import PodMeta, SubjectKind
from koordlet.statesinformer.pods.pleg import Pleg
from koordlet.statesinformer.states import kube_subjects
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir
from koordlet.system.cpu.cpuset import CPUSet
from tests.waiting import until

TOKEN = "s3cret"
HASH = "f" * 64
LARGE = 2 * BYTES_PER_ANSWER
TLS = KubeletVerification("", Path("/nonexistent"))
"""Of a kubelet without certificate files: not verified."""


def pod(name: str, uid: str, *, qos: str = "", container_id: str = f"containerd://{HASH}") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid, "labels": {"koordinator.sh/qosClass": qos}},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "mesh", "restartPolicy": "Always"}, {"name": "setup"}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "initContainerStatuses": [
                {"name": "mesh", "containerID": "containerd://mesh", "state": {"running": {}}},
                {"name": "setup", "containerID": "containerd://setup", "state": {"terminated": {"exitCode": 0}}},
            ],
            "containerStatuses": [{"name": "main", "containerID": container_id, "state": {"running": {}}}],
        },
    }


class Kubelet:
    """Answers like a kubelet: TLS, bearer token, whatever `answer` says."""

    def __init__(self) -> None:
        self.answer: object = {"kind": "PodList", "items": [pod("a", "uid-a"), pod("b", "uid-b", qos="BE")]}
        self.status = 200
        self.url = ""
        self.arrived = asyncio.Event()
        self.silent = False

    async def pods(self, request: web.Request) -> web.Response:
        self.arrived.set()
        if self.silent:
            await asyncio.Event().wait()
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401, text="Unauthorized")
        if isinstance(self.answer, str):
            return web.Response(status=self.status, text=self.answer)
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def kubelet(serving_certificate: tuple[Path, Path]) -> AsyncIterator[Kubelet]:
    fake, app = Kubelet(), web.Application()
    app.router.add_get("/pods/", fake.pods)
    app.router.add_get("/configz", fake.pods)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*serving_certificate)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    fake.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def client(kubelet: Kubelet) -> AsyncIterator[KubeletClient]:
    client = KubeletClient(lambda: kubelet.url, bearer(TOKEN), tls=TLS, timeout=60.0)
    yield client
    await client.close()


def bearer(token: str) -> Callable[[], Awaitable[dict[str, str]]]:
    async def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    return headers


async def test_pods_get_qos_cgroups_and_their_containers(client: KubeletClient) -> None:
    informer = PodsInformer(client, lambda: CgroupDriver.SYSTEMD)
    await informer.sync()
    a, b = informer.pods["uid-a"], informer.pods["uid-b"]
    assert (a.qos, a.priority_class, b.qos, b.priority_class) == ("LS", "koord-prod", "BE", "koord-batch")
    base = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid_a.slice"
    assert a.cgroup_dir == base
    assert [(c.name, c.cgroup_dir) for c in a.containers] == [
        ("mesh", f"{base}/cri-containerd-mesh.scope"),  # a sidecar; the finished init container is left out
        ("main", f"{base}/cri-containerd-{HASH}.scope"),
    ]
    assert (informer.synced, informer.error) == (True, "")


async def test_a_node_without_pods_is_no_problem(kubelet: Kubelet, client: KubeletClient) -> None:
    kubelet.answer = {"items": []}
    informer = PodsInformer(client, lambda: CgroupDriver.SYSTEMD)
    await informer.sync()
    assert (informer.answered, informer.synced, informer.error) == (True, False, "")


async def test_a_terminated_pod_has_no_sandbox_to_look_for(kubelet: Kubelet, client: KubeletClient) -> None:
    finished = pod("b", "uid-b")
    finished["status"]["phase"] = "Succeeded"
    kubelet.answer = {"items": [pod("a", "uid-a"), finished]}
    queried: list[str] = []
    informer = PodsInformer(
        client,
        lambda: CgroupDriver.SYSTEMD,
        sandbox_dir=lambda meta, _: queried.append(meta.uid) or "sandbox",  # type: ignore[func-returns-value]
    )
    for _ in range(2):
        await informer.sync()
    assert queried == ["uid-a"]
    assert informer.pods["uid-a"].sandbox_dir == "sandbox"


class Slow:
    """A kubelet that answers each question when the test does."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[list[Pod]]] = []

    async def pods(self) -> list[Pod]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


async def test_of_concurrent_requests_the_answer_to_the_last_is_kept() -> None:
    kubelet = Slow()
    informer = PodsInformer(kubelet, lambda: CgroupDriver.SYSTEMD)  # type: ignore[arg-type]
    rounds = [asyncio.create_task(informer.sync()) for _ in range(3)]
    await until(lambda: len(kubelet.asked) == 3)
    old, new = (Pod(metadata=ObjectMeta(name=name, uid=name)) for name in ("old", "new"))
    for number, answer, known in ((1, [new, old], {"new", "old"}), (0, [old], {"new", "old"}), (2, [new], {"new"})):
        kubelet.asked[number].set_result(answer)
        await rounds[number]
        assert set(informer.pods) == known


async def test_a_new_pod_directory_causes_an_immediate_query_of_the_kubelet(
    kubelet: Kubelet, client: KubeletClient, tmp_path: Path
) -> None:
    """Between two rounds an hour apart."""
    kubelet.answer = {"items": [pod("a", "uid-a")]}
    informer = PodsInformer(client, lambda: CgroupDriver.SYSTEMD)
    task, pleg = Periodic("pods", 3600.0, informer.sync), Pleg(tmp_path)
    prompt = EarlyTrigger(task.trigger, delay_s=0.01)
    pleg.add_handler(prompt.on_added)
    await task.start()
    await pleg.start()
    await until(lambda: informer.synced)
    kubelet.answer = {"items": [pod("a", "uid-a"), pod("new", "uid-new", container_id="")]}
    directory = tmp_path / pod_dir(CgroupDriver.SYSTEMD, KubeQOS.BURSTABLE, "uid-new")
    directory.mkdir(parents=True)
    await until(lambda: "uid-new" in informer.pods)
    kubelet.answer = {"items": [pod("a", "uid-a"), pod("new", "uid-new")]}
    (directory / "cri-containerd-abc.scope").mkdir()
    await until(lambda: informer.pods["uid-new"].containers[-1].name == "main")
    for service in (pleg, task):
        await service.stop()
    await prompt.close()


BAD = {
    "empty list": ({"items": []}, 200, None),
    "null list": ({"items": None}, 200, None),
    "server error": ("boom", 500, "HTTP 500"),
    "not JSON": ("<html>", 200, "not valid JSON"),
    "wrong type": ({"items": [{"metadata": {"name": 7}}]}, 200, "name"),
    "bad quantity": (
        {"items": [{"spec": {"containers": [{"name": "x", "resources": {"requests": {"cpu": "lots"}}}]}}]}, 200, "lots",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "status", "message"), BAD.values(), ids=BAD)
async def test_a_failing_kubelet_keeps_the_known_pods(
    kubelet: Kubelet, client: KubeletClient, answer: dict[str, Any] | str, status: int, message: str | None
) -> None:
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS)
    await informer.sync()
    kubelet.answer, kubelet.status = answer, status
    if message is None:
        await informer.sync()
    else:
        with pytest.raises(KubeletError, match=message):
            await informer.sync()
    assert informer.pods.keys() == {"uid-a", "uid-b"}
    assert informer.error


async def test_a_pod_without_valid_cgroups_is_left_out(kubelet: Kubelet, client: KubeletClient) -> None:
    kubelet.answer = {"items": [pod("a", "uid-a"), pod("odd", "uid-o", container_id="lxd://1"), pod("no-uid", "")]}
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS)
    await informer.sync()
    assert informer.pods.keys() == {"uid-a"}


async def test_a_malformed_pod_costs_only_itself(kubelet: Kubelet, client: KubeletClient) -> None:
    odd = pod("odd", "uid-odd")
    odd["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "lots"
    kubelet.answer = {"items": [pod("a", "uid-a"), odd, {"metadata": 7}, pod("b", "uid-b")]}
    assert [listed.metadata.name for listed in await client.pods()] == ["a", "b"]


async def test_a_pod_with_thousands_of_containers_is_cut_and_logged_once(
    kubelet: Kubelet, client: KubeletClient, caplog: pytest.LogCaptureFixture
) -> None:
    large = pod("large", "uid-l")
    large["spec"]["containers"] = [{"name": f"c{number}"} for number in range(5000)]
    for _ in range(2):
        kubelet.answer = {"items": [large, pod("a", "uid-a")]}
        assert [len(listed.spec.containers) for listed in await client.pods()] == [MAX_CONTAINERS, 1]
        large["metadata"]["annotations"] = {"new": "text"}
    assert caplog.text.count("A pod has too many containers") == 1


async def test_a_deep_pod_hides_no_pod(kubelet: Kubelet, client: KubeletClient) -> None:
    """A tenant chooses the depth of `managedFields`."""
    for depth in (950, 975, 1000, 5000):
        kubelet.answer = json.dumps({"items": [pod("deep", "uid-d"), pod("a", "uid-a")]}).replace(
            '{"metadata": {"name": "deep"',
            '{"metadata": {"managedFields": [%s], "name": "deep"' % ('{"f:a": ' * depth + "{}" + "}" * depth),
        )
        assert [listed.metadata.name for listed in await client.pods()] == ["deep", "a"]


async def test_a_long_list_is_read_to_its_end(kubelet: Kubelet, client: KubeletClient) -> None:
    """Megabytes come in many pieces."""
    long = [pod(f"pod-{number}", f"uid-{number}") for number in range(250)]
    for index in long:
        index["metadata"]["annotations"] = {"note": "x" * 10_000}
    kubelet.answer = {"items": long}
    assert len(await client.pods()) == 250


async def test_an_endless_answer_is_refused(
    kubelet: Kubelet, client: KubeletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_module, "MAX_ANSWER_BYTES", 1000)
    kubelet.answer = {"items": [pod(f"pod-{number}", f"uid-{number}") for number in range(10)]}
    with pytest.raises(KubeletError, match="longer than 1000 bytes"):
        await client.pods()


async def test_pods_are_known_however_long_the_answer_is(
    kubelet: Kubelet, client: KubeletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New pods are known although the whole answer is longer than what may be held of it."""
    monkeypatch.setattr(listbatches, "BATCH_BYTES", 50_000)
    monkeypatch.setattr(listbatches, "MAX_BATCH_BYTES", 200_000)
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS)
    for number in (1, 40):
        items = [pod(f"pod-{index}", f"uid-{index}") for index in range(number)]
        for item in items:
            item["metadata"]["annotations"] = {"fill": "<" * 10_000}
        text = json.dumps({"items": items}, separators=(",", ":")).replace("<", "\\u003c")
        assert number == 1 or len(text) > 10 * listbatches.MAX_BATCH_BYTES
        kubelet.answer = text
        await informer.sync()
    assert len(informer.pods) == 40
    decoded = client.decoded_bytes
    await informer.sync()
    assert client.decoded_bytes == decoded, "unchanged pods are recognized in all batches"


async def test_an_answer_that_breaks_off_keeps_the_known_pods(
    kubelet: Kubelet, client: KubeletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listbatches, "BATCH_BYTES", 2000)
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS)
    await informer.sync()
    text = json.dumps({"items": [pod(f"pod-{index}", f"uid-{index}") for index in range(40)]}, separators=(",", ":"))
    kubelet.answer = text[: len(text) // 2]
    with pytest.raises(KubeletError, match="not valid JSON"):
        await informer.sync()
    assert informer.pods.keys() == {"uid-a", "uid-b"}


async def test_refused_without_the_right_token(kubelet: Kubelet) -> None:
    stranger = KubeletClient(lambda: kubelet.url, bearer("wrong"), tls=TLS)
    with pytest.raises(KubeletError, match="HTTP 401"):
        await stranger.pods()
    await stranger.close()


async def test_connecting_without_a_listener() -> None:
    away = KubeletClient(lambda: "https://127.0.0.1:1", bearer(TOKEN), tls=TLS)
    with pytest.raises(KubeletError, match=r"127\.0\.0\.1:1"):
        await away.pods()
    await away.close()


async def test_requests_are_observed_by_code(kubelet: Kubelet) -> None:
    registry = CollectorRegistry()
    seconds = Histogram("seconds", "Requests.", ["verb", "path", "code"], registry=registry)
    client = KubeletClient(lambda: kubelet.url, bearer(TOKEN), tls=TLS, duration=seconds)
    await client.pods()
    kubelet.answer, kubelet.status = "no", 503
    with pytest.raises(KubeletError):
        await client.pods()
    await client.close()
    for code in ("200", "503"):
        labels = {"verb": "get", "path": "/pods/", "code": code}
        assert registry.get_sample_value("seconds_count", labels) == 1


async def test_configz(kubelet: Kubelet, client: KubeletClient) -> None:
    kubelet.answer = {"kubeletconfig": {"cgroupDriver": "systemd", "logging": {"format": "text"}}}
    assert (await client.config())["cgroupDriver"] == "systemd"
    kubelet.answer = {"other": {}}
    with pytest.raises(KubeletError, match="kubeletconfig is missing"):
        await client.config()


def node(*addresses: tuple[str, str], port: int | None = 10250) -> Node:
    endpoints = NodeDaemonEndpoints(kubelet_endpoint=None if port is None else DaemonEndpoint(port=port))
    status = NodeStatus(addresses=[NodeAddress(type=t, address=a) for t, a in addresses], daemon_endpoints=endpoints)
    return Node(metadata=ObjectMeta(name="n1"), status=status)


INTERNAL, EXTERNAL = ("InternalIP", "10.0.0.1"), ("ExternalIP", "192.0.2.1")
ENDPOINTS = {
    "preferred": (node(INTERNAL, EXTERNAL), "ExternalIP", False, "https://192.0.2.1:10250"),
    "invalid type": (node(INTERNAL), "Moon", False, "https://10.0.0.1:10250"),
    "IPv6": (node(("InternalIP", "fd00::1")), "InternalIP", False, "https://[fd00::1]:10250"),
    "insecure": (node(INTERNAL, port=None), "InternalIP", True, "http://10.0.0.1:10255"),
}


@pytest.mark.parametrize(("of", "kind", "insecure", "expected"), ENDPOINTS.values(), ids=ENDPOINTS)
def test_the_kubelets_url(of: Node, kind: str, insecure: bool, expected: str) -> None:
    assert kubelet_url(of, kind, insecure=insecure, read_only_port=10255) == expected


@pytest.mark.parametrize(
    ("of", "message"), [(node(), "no address"), (node(INTERNAL, port=None), "Port is not set")], ids=["address", "port"]
)
def test_a_node_without_a_kubelet_address(of: Node, message: str) -> None:
    with pytest.raises(KubeletError, match=f"n1.*{message}"):
        kubelet_url(of, "InternalIP", insecure=False, read_only_port=10255)


def test_host_applications_and_qos_directories_are_subjects() -> None:
    path = CgroupPath(base="KubepodsBesteffort", relative_path="x")
    apps = [
        HostApplicationSpec(name="nginx", qos="LS"),
        HostApplicationSpec(name="batch", qos="BE", cgroup_path=path),
    ]
    subjects = kube_subjects(CgroupDriver.CGROUPFS, {}, apps)
    assert [(s.kind, s.key, s.cgroup_dir, s.priority_class) for s in subjects] == [
        (SubjectKind.QOS, "Guaranteed", "kubepods", ""),
        (SubjectKind.QOS, "Burstable", "kubepods/burstable", ""),
        (SubjectKind.QOS, "BestEffort", "kubepods/besteffort", ""),
        (SubjectKind.HOST_APP, "nginx", "host-latency-sensitive/nginx", "koord-prod"),
        (SubjectKind.HOST_APP, "batch", "kubepods/besteffort/x", "koord-batch"),
    ]


async def test_the_sandbox_is_read_once_for_the_same_containers(kubelet: Kubelet, client: KubeletClient) -> None:
    requests, answers = [], ["", "sandbox-1", "sandbox-2"]

    def sandbox(meta: PodMeta, driver: CgroupDriver) -> str:
        requests.append(meta.uid)
        return answers.pop(0)

    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS, sandbox_dir=sandbox)
    sandboxes = []
    for digest in (HASH, HASH, HASH, "e" * 64, "e" * 64):
        kubelet.answer = {"items": [pod("a", "uid-a", container_id=f"containerd://{digest}")]}
        await informer.sync()
        sandboxes.append(informer.pods["uid-a"].sandbox_dir)
    assert sandboxes == ["", "sandbox-1", "sandbox-1", "sandbox-2", "sandbox-2"]
    assert len(requests) == 3


async def test_unchanged_pods_are_not_decoded_again(kubelet: Kubelet, client: KubeletClient) -> None:
    first = await client.pods()
    decoded = client.decoded_bytes
    second = await client.pods()
    assert (second[0] is first[0], client.decoded_bytes) == (True, decoded)
    kubelet.answer = {"items": [pod("a", "uid-a"), pod("b", "uid-b", qos="LS")]}
    third = await client.pods()
    assert (third[0] is first[0], third[1] == first[1]) == (True, False)
    assert decoded < client.decoded_bytes < 2 * decoded


async def test_unchanged_pods_are_not_described_again(kubelet: Kubelet, client: KubeletClient) -> None:
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS)
    await informer.sync()
    first = informer.pods
    await informer.sync()
    assert informer.pods is first
    kubelet.answer = {"kind": "PodList", "items": [pod("a", "uid-a"), pod("b", "uid-b", qos="LS")]}
    await informer.sync()
    assert informer.pods["uid-a"] is first["uid-a"]
    assert informer.pods["uid-b"].qos == "LS"


async def test_a_pod_that_changes_all_the_time_is_decoded_at_a_limited_rate(
    kubelet: Kubelet, client: KubeletClient
) -> None:
    for number in range(MAX_BYTES // LARGE + 20):
        churning = pod("a", "uid-a")
        churning["metadata"]["annotations"] = {"number": str(number), "fill": "x" * LARGE}
        quiet = pod("b", "uid-b")
        quiet["metadata"]["annotations"] = {"number": str(number)}
        kubelet.answer = {"items": [churning, quiet]}
        before = client.decoded_bytes
        first, second = await client.pods()
        assert second.metadata.annotations["number"] == str(number)
    assert client.decoded_bytes - before < LARGE, "the pod has no allowance left"
    assert 0 < int(first.metadata.annotations["number"]) < number
    assert client.postponed > 0
    for _ in range(LARGE // BYTES_PER_ANSWER + 1):
        first, _ = await client.pods()
    assert first.metadata.annotations["number"] == str(number), "the last change arrives"


async def test_a_pod_without_allowance_is_not_even_compared(
    kubelet: Kubelet, client: KubeletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hash took as much time as the rest of an answer of 400 KB."""
    hashed: list[int] = []
    digest = kubelet_module._digest

    def counted(raw: msgspec.Raw) -> tuple[int, int]:
        hashed.append(len(memoryview(raw)))
        return digest(raw)

    monkeypatch.setattr(kubelet_module, "_digest", counted)
    churning = pod("a", "uid-a")
    for number in range(20):
        churning["metadata"]["annotations"] = {"number": str(number), "fill": "x" * MAX_BYTES}
        kubelet.answer = {"items": [churning]}
        await client.pods()
    assert len(hashed) < 5
    assert client.postponed == 20 - len(hashed)


@pytest.mark.parametrize(("labels", "compared"), [(1000, 20), (15_000, 2)])
async def test_a_very_long_pod_is_compared_at_a_limited_rate(
    kubelet: Kubelet, client: KubeletClient, monkeypatch: pytest.MonkeyPatch, labels: int, compared: int
) -> None:
    hashed: list[int] = []
    digest = kubelet_module._digest

    def counted(raw: msgspec.Raw) -> tuple[int, int]:
        hashed.append(len(memoryview(raw)))
        return digest(raw)

    monkeypatch.setattr(kubelet_module, "_digest", counted)
    monkeypatch.setattr(kubelet_module, "COMPARED_BYTES", 100_000)
    monkeypatch.setattr(kubelet_module, "COMPARISON_SHARE", 1)
    long = pod("a", "uid-a")
    long["metadata"]["labels"] = {f"label-{number}": "" for number in range(labels)}
    kubelet.answer = {"items": [long]}
    for _ in range(21):
        await client.pods()
    assert len(hashed) == 1 + compared
    assert client.answer_bytes >= len(json.dumps(kubelet.answer, separators=(",", ":")))


async def test_a_very_long_pod_without_allowance_is_not_held(
    kubelet: Kubelet, client: KubeletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its state for some answers, and then has the new one; the pods after it always have theirs."""
    monkeypatch.setattr(listbatches, "BATCH_BYTES", 100_000)
    long, other = pod("a", "uid-a"), pod("b", "uid-b")
    taken: list[int] = []
    take = client._take

    def counted(batch: listbatches.Batch, decoded: dict[Any, Pod]) -> object:
        taken.append(len(batch))
        return take(batch, decoded)

    monkeypatch.setattr(client, "_take", counted)
    numbers = []
    for number in range(40):
        long["metadata"]["annotations"] = {"number": str(min(number, 20)), "fill": "x" * MAX_BYTES}
        other["metadata"]["annotations"] = {"number": str(number)}
        text = json.dumps({"items": [long, other]}, separators=(",", ":"))
        kubelet.answer = text
        first, second = await client.pods()
        assert second.metadata.annotations["number"] == str(number)
        numbers.append(int(first.metadata.annotations["number"]))
    held = sum(length > MAX_BYTES for length in taken)
    assert client.postponed == 40 - held > 30
    assert client.answer_bytes == len(text)
    assert numbers == sorted(numbers) and numbers[-1] == 20


def test_the_digest_of_a_long_pod_covers_every_byte() -> None:
    part = kubelet_module._HASHED_BYTES
    text = b'"' + b"a" * part + b"b" * part + b'c"'
    texts = [text, b'"' + b"b" * part + b"a" * part + b'c"']
    texts += [text[:at] + b"d" + text[at + 1 :] for at in (1, part - 1, part, part + 1, 2 * part, len(text) - 2)]
    digests = {kubelet_module._digest(msgspec.Raw(each)) for each in texts}
    assert len(digests) == len(texts) and kubelet_module._digest(msgspec.Raw(text)) in digests


async def test_a_new_pod_of_the_same_size_is_decoded_at_once(kubelet: Kubelet, client: KubeletClient) -> None:
    for number in range(MAX_BYTES // LARGE + 20):
        new = pod("a", f"uid-{number}")
        new["metadata"]["annotations"] = {"fill": "x" * LARGE}
        kubelet.answer = {"items": [new]}
        (known,) = await client.pods()
        assert known.metadata.uid == f"uid-{number}"
    assert client.postponed == 0


async def test_a_blocked_event_loop_is_not_a_time_out_of_the_kubelet(kubelet: Kubelet) -> None:
    delays: list[float] = []
    client = KubeletClient(lambda: kubelet.url, bearer(TOKEN), tls=TLS, timeout=0.5, on_own_delay=delays.append)
    try:
        await client.pods()  # connects
        kubelet.arrived.clear()
        request = asyncio.ensure_future(client.pods())
        await kubelet.arrived.wait()
        time.sleep(1.0)  # noqa: ASYNC251 - koordlet's own work, longer than the limit
        assert len(await request) == 2
        assert sum(delays) > 0
    finally:
        await client.close()


async def test_a_kubelet_that_does_not_answer_is_timed_out(kubelet: Kubelet) -> None:
    kubelet.silent = True
    client = KubeletClient(lambda: kubelet.url, bearer(TOKEN), tls=TLS, timeout=0.05)
    try:
        with pytest.raises(KubeletError, match=r"no answer within 0\.05 s"):
            await client.pods()
    finally:
        await client.close()


async def test_pods_are_accepted_beside_each_other(kubelet: Kubelet, client: KubeletClient) -> None:
    items = [pod("a", "uid-a", qos="LSR"), pod("b", "uid-b", qos="LSR")]
    for item in items:
        item["metadata"]["annotations"] = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0"}'}
    kubelet.answer = {"items": items}
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS, online_cpus=CPUSet({0}))
    await informer.sync()
    assert [meta.cpu_allocation.cpus for meta in informer.pods.values()] == [CPUSet({0}), CPUSet()]
    assert "pod default/a has the CPUs 0" in informer.pods["uid-b"].cpu_allocation.refused


async def test_devices_are_accepted_beside_each_other(kubelet: Kubelet, client: KubeletClient) -> None:
    items = [pod("a", "uid-a"), pod("b", "uid-b")]
    for item in items:
        item["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0}]}'}
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS, device_minors={"gpu": {0}}.get)
    kubelet.answer = {"items": items[1:]}
    await informer.sync()
    kubelet.answer = {"items": items}
    await informer.sync()
    first, second = informer.pods["uid-a"].device_allocation, informer.pods["uid-b"].device_allocation
    assert (list(first.devices), list(second.devices)) == ([], ["gpu"]), "the pod that was first keeps its device"
    assert "pod default/b has gpu 0" in first.refused


async def test_a_container_id_that_leads_to_another_pod_leaves_the_pod_out(
    kubelet: Kubelet, client: KubeletClient
) -> None:
    liar = pod("a", "uid-a", container_id="containerd://../../burstable/poduid-b/c")
    kubelet.answer = {"items": [liar, pod("b", "uid-b")]}
    informer = PodsInformer(client, lambda: CgroupDriver.CGROUPFS)
    await informer.sync()
    assert list(informer.pods) == ["uid-b"]
