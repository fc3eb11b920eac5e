"""Extenders over HTTP: what they are asked, what their answers do, and what happens when there is none."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from control.component.errors import ConfigurationError
from control.scheduler.config.model import ExtenderConfig, ExtenderTls, ManagedResource
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.extenders import ExtenderError, Extenders
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.loop import Loop
from control.scheduler.plugins.prioritysort import PrioritySort
from koordlet.api.encoding.times import Duration
from koordlet.app.http import HttpServer
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.gangworld import RecordingReporter
from tests.control.scheduler.toys import TOYS, cycle_of, queue_of
from tests.waiting import until

POINTS = {"filter": ("Cordon", "Fits"), "score": ("Fits",), "queueSort": ("PrioritySort",)}


class Service:
    """An extender: answers by verb, as tests set them."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.registry = CollectorRegistry()
        self.started: list[Extenders] = []
        self.server = HttpServer("127.0.0.1:0", routes=[web.post("/x/{verb}", self._answer)])

    async def _answer(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        self.asked.append((verb, await request.json()))
        await self.hold.wait()
        answer = self.answers.get(verb, 500)
        return web.Response(status=answer) if isinstance(answer, int) else web.json_response(answer)

    async def extenders(self, *configs: dict[str, Any]) -> Extenders:
        extender_configs = [ExtenderConfig(url_prefix=f"{self.server.url}/x", **config) for config in configs]
        made_extenders = Extenders(extender_configs, self.registry)
        await made_extenders.start()
        self.started.append(made_extenders)
        return made_extenders

    def calls(self, verb: str, result: str) -> float:
        labels = {"extender": f"{self.server.url}/x", "verb": verb, "result": result}
        return self.registry.get_sample_value("scheduler_extender_requests_total", labels) or 0.0


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    await service.server.start()
    yield service
    for extenders in service.started:
        await extenders.stop()
    await service.server.stop()


def three() -> tuple[Cluster, Cycle]:
    cluster = Cluster(node("a"), node("b"), node("c"), node("full", cpu="0"))
    return cluster, cycle_of(cluster, POINTS, {**TOYS, "PrioritySort": PrioritySort})


FILTER = {"filter_verb": "filter"}
NAMES = {**FILTER, "node_cache_capable": True}


async def test_an_extender_that_caches_nodes_gets_their_names(service: Service) -> None:
    cluster, cycle = three()
    service.answers["filter"] = {
        "NodeNames": ["c"], "FailedNodes": {"a": "busy"}, "FailedAndUnresolvableNodes": {"b": "never"},
    }  # fmt: skip
    outcome = await (await service.extenders(NAMES)).query(cycle.framework, cluster.info(pod("p")))
    ((verb, body),) = service.asked
    assert (verb, sorted(body["NodeNames"]), body["Nodes"]) == ("filter", ["a", "b", "c"], None)
    assert body["Pod"]["metadata"]["name"] == "p"
    assert outcome is not None
    assert outcome.allowed == {"c"}
    assert {name: (refusal.code_name, refusal.message) for name, refusal in outcome.refused.items()} == {
        "a": ("Unschedulable", "busy"),
        "b": ("UnschedulableAndUnresolvable", "never"),
    }
    assert service.calls("filter", "ok") == 1


async def test_others_get_whole_nodes(service: Service) -> None:
    cluster, cycle = three()
    service.answers["filter"] = {"Nodes": {"items": [{"metadata": {"name": "b"}}]}}
    outcome = await (await service.extenders(FILTER)).query(cycle.framework, cluster.info(pod("p")))
    items = service.asked[0][1]["Nodes"]["items"]
    assert sorted(item["metadata"]["name"] for item in items) == ["a", "b", "c"]
    assert items[0]["status"]["allocatable"]["cpu"] == "8"
    assert outcome is not None
    assert outcome.allowed == {"b"}


async def test_the_next_extender_gets_the_remaining_nodes(service: Service) -> None:
    cluster, cycle = three()
    service.answers |= {"filter": {"NodeNames": ["a", "b"]}, "second": {"NodeNames": []}, "third": {}}
    extenders = await service.extenders(NAMES, {**NAMES, "filter_verb": "second"}, {**NAMES, "filter_verb": "third"})
    outcome = await extenders.query(cycle.framework, cluster.info(pod("p")))
    assert [(verb, body["NodeNames"]) for verb, body in service.asked][1:] == [("second", ["a", "b"])]
    assert outcome is not None
    assert outcome.allowed == frozenset()


async def test_scores_are_weighted_and_summed(service: Service) -> None:
    cluster, cycle = three()
    service.answers["first"] = [{"Host": "a", "Score": 3}, {"Host": "b", "Score": 10}]
    service.answers["second"] = [{"Host": "a", "Score": 1}]
    configs = [{"prioritize_verb": verb, "weight": weight} for verb, weight in (("first", 2), ("second", 5))]
    extenders = await service.extenders(*configs, {"prioritize_verb": "broken", "weight": 1})
    outcome = await extenders.query(cycle.framework, cluster.info(pod("p")))
    assert outcome is not None
    assert outcome.scores == {"a": 110, "b": 200}  # (3*2 + 1*5) * 10, 10*2 * 10
    assert outcome.allowed == {"a", "b", "c"}
    assert service.calls("prioritize", "error") == 1  # its scores are done without


async def test_only_pods_with_managed_resources_concern_it(service: Service) -> None:
    cluster, cycle = three()
    service.answers["filter"] = {"NodeNames": ["a"]}
    extenders = await service.extenders({**NAMES, "managed_resources": [ManagedResource("example.com/gpu")]})
    assert await extenders.query(cycle.framework, cluster.info(pod("p"))) is None
    wants = cluster.info(pod("q", limits={"example.com/gpu": "1"}))
    assert await extenders.query(cycle.framework, wants) is not None
    assert (
        await extenders.query(cycle.framework, cluster.info(pod("big", cpu="99", limits={"example.com/gpu": "1"})))
        is None
    )
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (500, "failed filter with extender at URL"),
        ({"Error": "out of order"}, "out of order"),
        ({"NodeNames": ["z"]}, "allows node 'z', which was not in the request"),
    ],
)
async def test_failures_end_the_attempt_unless_they_may_be_ignored(service: Service, answer: Any, text: str) -> None:
    cluster, cycle = three()
    service.answers["filter"] = answer
    with pytest.raises(ExtenderError, match=text):
        await (await service.extenders(NAMES)).query(cycle.framework, cluster.info(pod("p")))
    outcome = await (await service.extenders({**NAMES, "ignorable": True})).query(
        cycle.framework, cluster.info(pod("p"))
    )
    assert outcome is not None
    assert outcome.allowed == {"a", "b", "c"}


async def test_an_extender_that_does_not_answer_in_time(service: Service) -> None:
    cluster, cycle = three()
    service.hold.clear()
    extenders = await service.extenders({**NAMES, "http_timeout": Duration("50ms")})
    with pytest.raises(ExtenderError, match="filter"):
        await extenders.query(cycle.framework, cluster.info(pod("p")))
    service.hold.set()


async def test_cycles_use_the_results_of_extenders(service: Service) -> None:
    cluster, cycle = three()
    service.answers["filter"] = {"NodeNames": ["a", "b"], "FailedNodes": {"c": "no licence"}}
    service.answers["prioritize"] = [{"Host": "b", "Score": 10}]
    extenders = await service.extenders({**NAMES, "prioritize_verb": "prioritize", "weight": 1})
    result = await extenders.query(cycle.framework, cluster.info(pod("p")))
    assert cycle.place(cluster.info(pod("p")), result).node == "b"
    cluster.table.set_node(node("new"))  # it was not asked about
    service.answers["filter"] = {"NodeNames": [], "FailedNodes": {"a": "no licence"}}
    result = await extenders.query(cycle.framework, cluster.info(pod("q")))
    with pytest.raises(FitError) as failure:
        cycle.place(cluster.info(pod("q")), result)
    assert failure.value.text() == (
        "0/5 nodes are available: 1 Insufficient cpu, 1 no licence, 3 node(s) were not allowed by an extender."
    )
    assert failure.value.plugins() == {"Fits", "Extender"}
    assert cycle.place(cluster.info(pod("r"))).node in ("a", "c", "new")


async def test_the_loop_calls_extenders_before_each_cycle_and_to_bind(service: Service) -> None:
    cluster, cycle = three()
    queue = queue_of(cycle.framework)
    reporter = RecordingReporter()
    extenders = await service.extenders({**NAMES, "bind_verb": "bind"})
    loop = Loop({"koord-scheduler": cycle}, cycle.cache, queue, reporter=reporter, extenders=extenders)
    binder = loop.binders["koord-scheduler"]
    service.answers |= {"filter": {"NodeNames": ["c"]}, "bind": {}}
    info = cluster.info(pod("p"))
    queue.add(info)
    await loop.work_extended(extenders, queue.pop_run(1)[0])
    await until(lambda: not len(binder))
    bound = [body for verb, body in service.asked if verb == "bind"]
    assert bound == [{"PodName": "p", "PodNamespace": "default", "PodUID": info.uid, "Node": "c"}]
    assert len(queue) == 0
    service.answers["filter"] = 500
    other = cluster.info(pod("q"))
    queue.add(other)
    await loop.work_extended(extenders, queue.pop_run(1)[0])
    assert "failed filter with extender" in reporter.messages["q"]
    assert queue.counts()["backoff"] == 1
    service.answers |= {"filter": {"NodeNames": ["c"]}, "bind": {"Error": "no"}}
    third = cluster.info(pod("r"))
    queue.add(third)
    await loop.work_extended(extenders, queue.pop_run(1)[0])
    await until(lambda: not len(binder))
    assert reporter.messages["r"].endswith("/x: no")


def test_unusable_tls_settings_are_rejected() -> None:
    for tls in (ExtenderTls(ca_file="/nowhere"), ExtenderTls(ca_data="%"), ExtenderTls(cert_data=_b64("x"))):
        with pytest.raises(ConfigurationError, match=r"extenders\[0\]\.tlsConfig"):
            Extenders([ExtenderConfig(url_prefix="https://x", tls_config=tls)], CollectorRegistry())
    Extenders([ExtenderConfig(url_prefix="https://x", tls_config=ExtenderTls(insecure=True))], CollectorRegistry())


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
