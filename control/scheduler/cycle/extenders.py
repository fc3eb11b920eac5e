"""Extenders: services of others that filter, score and bind over HTTP, as kube-scheduler's configuration has them.

A cycle is synchronous and must not wait for anybody. So a pod that extenders are interested in is judged twice: its
nodes are filtered, the extenders are asked about those that fit, and then the cycle runs as always, with their
`Verdict` by node name in hand. A node that began to fit meanwhile was not asked about and is left out this time. What
extenders bind, they bind in the pod's own task.

Who is refused by an extender is tried again after any event: extenders name none.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from prometheus_client import CollectorRegistry, Counter

from control.scheduler.config.errors import ConfigurationError
from control.scheduler.config.model import ExtenderConfig, ExtenderTls
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.explain.podreport import judge
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import SUCCESS, Status, error, unresolvable, unschedulable
from control.scheduler.state.pods import PodInfo
from koordlet.api.encoding import wire
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet

log = get_logger(__name__)

PLUGIN: Final = "Extender"
"""Stands for all extenders where the queue asks which plugin refused a pod."""
SCALE: Final = 10
"""An extender's scores go up to 10, plugins' up to 100."""


class ExtenderError(Exception):
    """An extender did not answer, or not in a way that can be used; the message names it."""


class ExtenderMetrics(MetricSet):
    """`result`: ok or error; `verb`: filter, prioritize, bind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "scheduler_extender_requests_total", "Requests to extenders.", ["extender", "verb", "result"],
            registry=registry,
        )  # fmt: skip


@dataclass
class Verdict:
    """What extenders make of the nodes that fit a pod."""

    allowed: frozenset[str]
    refused: Mapping[str, Status] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)
    """Weighted and scaled; a node that is not in it has 0."""


class Extender:
    """One of them."""

    def __init__(
        self,
        config: ExtenderConfig,
        tls: ssl.SSLContext | bool,
        session: aiohttp.ClientSession,
        metrics: ExtenderMetrics,
    ) -> None:
        self.config, self._tls = config, tls
        self.url = config.url_prefix.rstrip("/")
        self._session, self._metrics = session, metrics
        self._managed = frozenset(one.name for one in config.managed_resources)

    def interested(self, pod: PodInfo) -> bool:
        """Whether the pod asks for a resource that the extender manages; for everything, if it manages none."""
        if not self._managed:
            return True
        spec = pod.pod.spec
        return any(
            not self._managed.isdisjoint((*one.resources.requests, *one.resources.limits))
            for one in (*spec.containers, *spec.init_containers)
        )

    async def filter(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[str]) -> tuple[list[str], dict[str, Status]]:
        """(nodes that it allows, what it says of the others that it names). Raises ExtenderError."""
        found = await self._call("filter", self.config.filter_verb, self._about(cycle, pod, nodes))
        if found.get("Error"):
            raise ExtenderError(f"{self.url}: {found['Error']}")
        refused: dict[str, Status] = {}
        for key, status in (("FailedNodes", unschedulable), ("FailedAndUnresolvableNodes", unresolvable)):
            for node, text in (found.get(key) or {}).items():
                refused[str(node)] = status(str(text), plugin=PLUGIN)
        names = found.get("NodeNames") if self.config.node_cache_capable else None
        if names is None:
            items = (found.get("Nodes") or {}).get("items") or []
            names = [((one or {}).get("metadata") or {}).get("name") for one in items]
        asked = frozenset(nodes)
        strange = next((name for name in names if name not in asked), None)
        if strange is not None:
            raise ExtenderError(f"{self.url}: extender allows node {strange!r}, which it was not asked about")
        return [str(name) for name in names if str(name) not in refused], refused

    async def prioritize(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[str]) -> dict[str, int]:
        """Weighted scores by node. Raises ExtenderError."""
        found = await self._call("prioritize", self.config.prioritize_verb, self._about(cycle, pod, nodes))
        try:
            return {str(one["Host"]): int(one["Score"]) * self.config.weight for one in found or ()}
        except (KeyError, TypeError, ValueError) as problem:
            raise ExtenderError(f"{self.url}: not a list of hosts with scores: {problem!r}") from problem

    async def bind(self, pod: PodInfo, node: str) -> Status:
        """Bind the pod there."""
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        try:
            found = await self._call("bind", self.config.bind_verb, body)
        except ExtenderError as problem:
            return error(str(problem), plugin=PLUGIN)
        said = found.get("Error") if isinstance(found, dict) else None
        return error(f"{self.url}: {said}", plugin=PLUGIN) if said else SUCCESS

    def _about(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[str]) -> dict[str, Any]:
        """A pod and nodes, by name for an extender that knows them."""
        body: dict[str, Any] = {"Pod": wire.to_builtins(pod.pod), "Nodes": None, "NodeNames": None}
        if self.config.node_cache_capable:
            body["NodeNames"] = list(nodes)
        else:
            rows = cycle.table.rows
            body["Nodes"] = {"items": [wire.to_builtins(cycle.table.nodes[rows[name]]) for name in nodes]}
        return body

    async def _call(self, verb: str, path: str, body: Mapping[str, Any]) -> Any:
        labels = self._metrics.calls.labels
        timeout = aiohttp.ClientTimeout(total=self.config.http_timeout.seconds or None)
        url = f"{self.url}/{path}"
        try:
            async with self._session.post(url, json=body, timeout=timeout, ssl=self._tls) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
            found = json.loads(text)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            labels(self.url, verb, "error").inc()
            raise ExtenderError(f"{url}: {str(problem) or type(problem).__name__}") from problem
        except ExtenderError:
            labels(self.url, verb, "error").inc()
            raise
        labels(self.url, verb, "ok").inc()
        return found if found is not None else {}


class Extenders:
    """All of them, in the configuration's order. `ask` before a cycle; `binder` when a pod is bound."""

    def __init__(self, configs: Sequence[ExtenderConfig], registry: CollectorRegistry) -> None:
        """Raises ConfigurationError for TLS settings that can't be used."""
        self.name = "extenders"
        self._configs, self._registry = configs, registry
        self._tls: list[ssl.SSLContext | bool] = []
        for index, config in enumerate(configs):
            try:
                self._tls.append(tls_context(config))
            except (OSError, ValueError) as problem:  # SSLError and binascii's are among them
                raise ConfigurationError([f"extenders[{index}].tlsConfig: {problem}"]) from problem
        self._session: aiohttp.ClientSession | None = None
        self.all: tuple[Extender, ...] = ()

    async def start(self) -> None:
        self._session = session = aiohttp.ClientSession()
        metrics = ExtenderMetrics.of(self._registry)
        pairs = zip(self._configs, self._tls, strict=True)
        self.all = tuple(Extender(config, tls, session, metrics) for config, tls in pairs)

    async def stop(self) -> None:
        session, self._session, self.all = self._session, None, ()
        if session is not None:
            await session.close()

    def binder(self, pod: PodInfo) -> Extender | None:
        """Who binds the pod instead of the plugins."""
        return next((one for one in self.all if one.config.bind_verb and one.interested(pod)), None)

    async def ask(self, cycle: Cycle, pod: PodInfo) -> Verdict | None:
        """What they say of the nodes that fit; None: nobody is interested, or no node fits anyway.

        Raises ExtenderError when one that is not ignorable can't be asked."""
        filters = [one for one in self.all if one.config.filter_verb and one.interested(pod)]
        scorers = [one for one in self.all if one.config.prioritize_verb and one.interested(pod)]
        if not filters and not scorers:
            return None
        nodes = _fitting(cycle, pod)
        if not nodes:
            return None
        refused: dict[str, Status] = {}
        for extender in filters:
            try:
                nodes, said = await extender.filter(cycle, pod, [name for name in nodes if _there(cycle, name)])
            except ExtenderError as problem:
                if not extender.config.ignorable:
                    raise
                log.warning("Extender left out", pod=pod.key, err=problem)
                continue
            refused |= said
            if not nodes:
                break
        scores: dict[str, int] = {}
        for extender in scorers if len(nodes) > 1 else ():
            try:
                given = await extender.prioritize(cycle, pod, [name for name in nodes if _there(cycle, name)])
            except ExtenderError as problem:  # others decide then, as in kube-scheduler
                log.warning("Extender gives no scores", pod=pod.key, err=problem)
                continue
            for name, score in given.items():
                scores[name] = scores.get(name, 0) + score * SCALE
        return Verdict(frozenset(nodes), refused, scores)


def _fitting(cycle: Cycle, pod: PodInfo) -> list[str]:
    """Names of the nodes that every plugin accepts just now."""
    state = CycleState()
    try:
        _, rows = judge(cycle, state, pod)
    finally:
        while state.undo:
            state.undo.pop()()
    return [cycle.table.names[row] for row in rows.tolist()]


def _there(cycle: Cycle, node: str) -> bool:
    """Nodes may go while extenders are asked."""
    return cycle.table.row(node) is not None


def tls_context(config: ExtenderConfig) -> ssl.SSLContext | bool:
    """How an extender is spoken to; True: as the machine trusts others."""
    given = config.tls_config
    if given is None:
        return True
    made = ssl.create_default_context(cafile=given.ca_file or None, cadata=_text(given.ca_data) or None)
    if given.insecure:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if given.cert_file:
        made.load_cert_chain(given.cert_file, given.key_file or None)
    elif given.cert_data:
        _load(made, given)
    return made


def _load(into: ssl.SSLContext, given: ExtenderTls) -> None:
    descriptor = os.memfd_create("extender")  # `ssl` reads from files only
    try:
        os.write(descriptor, f"{_text(given.key_data)}\n{_text(given.cert_data)}\n".encode())
        into.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _text(data: str) -> str:
    return base64.b64decode(data, validate=True).decode()
