"""Extenders: external services that filter, score and bind over HTTP, as in kube-scheduler's configuration.

A cycle is synchronous and cannot wait for HTTP. Therefore a pod in which extenders are interested is evaluated twice:
its nodes are filtered, the extenders are called with those that fit, and then the normal cycle runs with their
`ExtenderResult`. A node that begins to fit in between was not sent to the extenders and is not used this time. An
extender that binds is called in the pod's binding task.

A pod that an extender rejects is retried after any event, because extenders do not declare events.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
from prometheus_client import CollectorRegistry

from control.component.errors import ConfigurationError
from control.scheduler.config.model import ExtenderConfig, ExtenderTls
from control.scheduler.cycle.evaluation import evaluate
from control.scheduler.framework.plugin import CycleState, ExtenderResult
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import SUCCESS, PluginStatus, error, unresolvable, unschedulable
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable
from koordlet.api.encoding import wire
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter

log = get_logger(__name__)

EXTENDER: Final = "Extender"
"""The plugin name that stands for all extenders as the reason of a rejection."""
SCORE_SCALE: Final = 10
"""The highest score of an extender is 10, of a plugin 100."""


class ExtenderError(Exception):
    """An extender did not respond, or its response is unusable. The message names the extender."""


class ExtenderMetrics(MetricSet):
    """`result`: ok or error; `verb`: filter, prioritize, bind."""

    calls = counter("scheduler_extender_requests_total", "Requests to extenders.", "extender", "verb", "result")


class Extender:
    """The client of one extender."""

    def __init__(
        self,
        config: ExtenderConfig,
        tls: ssl.SSLContext | bool,
        session: aiohttp.ClientSession,
        metrics: ExtenderMetrics,
    ) -> None:
        self.config = config
        self.url = config.url_prefix.rstrip("/")
        self._tls = tls
        self._session = session
        self._metrics = metrics
        self._managed = frozenset(resource.name for resource in config.managed_resources)

    def interested(self, pod: PodInfo) -> bool:
        """Whether the pod uses a resource that the extender manages; always true if it manages none."""
        if not self._managed:
            return True
        spec = pod.pod.spec
        return any(
            not self._managed.isdisjoint((*container.resources.requests, *container.resources.limits))
            for container in (*spec.containers, *spec.init_containers)
        )

    async def filter(
        self, table: NodeTable, pod: PodInfo, nodes: Sequence[str]
    ) -> tuple[list[str], dict[str, PluginStatus]]:
        """(allowed nodes, status of the nodes that it refuses by name). Raises ExtenderError."""
        response = await self._call("filter", self.config.filter_verb, self._arguments(table, pod, nodes))
        if response.get("Error"):
            raise ExtenderError(f"{self.url}: {response['Error']}")
        refused: dict[str, PluginStatus] = {}
        for key, status in (("FailedNodes", unschedulable), ("FailedAndUnresolvableNodes", unresolvable)):
            for node, text in (response.get(key) or {}).items():
                refused[str(node)] = status(str(text), plugin=EXTENDER)
        names = response.get("NodeNames") if self.config.node_cache_capable else None
        if names is None:
            items = (response.get("Nodes") or {}).get("items") or []
            names = [((node or {}).get("metadata") or {}).get("name") for node in items]
        sent = frozenset(nodes)
        unknown = next((name for name in names if name not in sent), None)
        if unknown is not None:
            raise ExtenderError(f"{self.url}: extender allows node {unknown!r}, which was not in the request")
        return [str(name) for name in names if str(name) not in refused], refused

    async def prioritize(self, table: NodeTable, pod: PodInfo, nodes: Sequence[str]) -> dict[str, int]:
        """Weighted scores by node. Raises ExtenderError."""
        response = await self._call("prioritize", self.config.prioritize_verb, self._arguments(table, pod, nodes))
        try:
            return {str(item["Host"]): int(item["Score"]) * self.config.weight for item in response or ()}
        except (KeyError, TypeError, ValueError) as failure:
            raise ExtenderError(f"{self.url}: not a list of hosts with scores: {failure!r}") from failure

    async def bind(self, pod: PodInfo, node: str) -> PluginStatus:
        """Let the extender bind the pod."""
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        try:
            response = await self._call("bind", self.config.bind_verb, body)
        except ExtenderError as failure:
            return error(str(failure), plugin=EXTENDER)
        text = response.get("Error") if isinstance(response, dict) else None
        return error(f"{self.url}: {text}", plugin=EXTENDER) if text else SUCCESS

    def _arguments(self, table: NodeTable, pod: PodInfo, nodes: Sequence[str]) -> dict[str, Any]:
        """A pod and nodes; only the names of nodes for an extender that caches them."""
        body: dict[str, Any] = {"Pod": wire.to_builtins(pod.pod), "Nodes": None, "NodeNames": None}
        if self.config.node_cache_capable:
            body["NodeNames"] = list(nodes)
        else:
            body["Nodes"] = {"items": [wire.to_builtins(table.nodes[table.rows[name]]) for name in nodes]}
        return body

    async def _call(self, verb: str, path: str, body: Mapping[str, Any]) -> Any:
        labels = self._metrics.calls.labels
        timeout = aiohttp.ClientTimeout(total=self.config.http_timeout.seconds or None)
        url = f"{self.url}/{path}"
        try:
            async with self._session.post(url, json=body, timeout=timeout, ssl=self._tls) as response:
                text = await response.text()
                if response.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
            body_received = json.loads(text)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            labels(self.url, verb, "error").inc()
            raise ExtenderError(f"{url}: {str(failure) or type(failure).__name__}") from failure
        except ExtenderError:
            labels(self.url, verb, "error").inc()
            raise
        labels(self.url, verb, "ok").inc()
        return body_received if body_received is not None else {}


class Extenders:
    """All extenders, in the configuration's order. `query` is called before a cycle, `binder` when a pod is bound."""

    def __init__(self, configs: Sequence[ExtenderConfig], registry: CollectorRegistry) -> None:
        """Raises ConfigurationError for unusable TLS settings."""
        self.name = "extenders"
        self._configs = configs
        self._registry = registry
        self._tls: list[ssl.SSLContext | bool] = []
        for index, config in enumerate(configs):
            try:
                self._tls.append(tls_context(config))
            except (OSError, ValueError) as failure:  # includes SSLError and binascii.Error
                raise ConfigurationError([f"extenders[{index}].tlsConfig: {failure}"]) from failure
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
        """The extender that binds the pod instead of the plugins."""
        return next((extender for extender in self.all if extender.config.bind_verb and extender.interested(pod)), None)

    async def query(self, framework: Framework, pod: PodInfo) -> ExtenderResult | None:
        """The results for the nodes that fit. None: no extender is interested, or no node fits.

        Raises ExtenderError when an extender that is not ignorable fails."""
        filters = [extender for extender in self.all if extender.config.filter_verb and extender.interested(pod)]
        scorers = [extender for extender in self.all if extender.config.prioritize_verb and extender.interested(pod)]
        if not filters and not scorers:
            return None
        table = framework.handle.table
        nodes = _fitting(framework, pod)
        if not nodes:
            return None
        refused: dict[str, PluginStatus] = {}
        for extender in filters:
            try:
                nodes, refusals = await extender.filter(table, pod, _existing(table, nodes))
            except ExtenderError as failure:
                if not extender.config.ignorable:
                    raise
                log.warning("Ignoring a failed extender", pod=pod.key, err=failure)
                continue
            refused |= refusals
            if not nodes:
                break
        scores: dict[str, int] = {}
        for extender in scorers if len(nodes) > 1 else ():
            try:
                own_scores = await extender.prioritize(table, pod, _existing(table, nodes))
            except ExtenderError as failure:  # the remaining scores decide, as in kube-scheduler
                log.warning("Extender returned no scores", pod=pod.key, err=failure)
                continue
            for name, score in own_scores.items():
                scores[name] = scores.get(name, 0) + score * SCORE_SCALE
        return ExtenderResult(frozenset(nodes), refused, scores)


def _fitting(framework: Framework, pod: PodInfo) -> list[str]:
    """Names of the nodes that every plugin accepts now."""
    state = CycleState()
    try:
        _, rows = evaluate(framework, state, pod)
    finally:
        state.run_undo()
    return [framework.handle.table.names[row] for row in rows.tolist()]


def _existing(table: NodeTable, nodes: Sequence[str]) -> list[str]:
    """The nodes that still exist: nodes may be removed while an extender is called."""
    return [name for name in nodes if table.row(name) is not None]


def tls_context(config: ExtenderConfig) -> ssl.SSLContext | bool:
    """The TLS settings for an extender; True: the defaults of the machine."""
    tls = config.tls_config
    if tls is None:
        return True
    context = ssl.create_default_context(cafile=tls.ca_file or None, cadata=_text(tls.ca_data) or None)
    if tls.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    elif tls.cert_data:
        _load_cert_data(context, tls)
    return context


def _load_cert_data(context: ssl.SSLContext, tls: ExtenderTls) -> None:
    descriptor = os.memfd_create("extender")  # `ssl` loads key pairs only from files
    try:
        os.write(descriptor, f"{_text(tls.key_data)}\n{_text(tls.cert_data)}\n".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _text(data: str) -> str:
    return base64.b64decode(data, validate=True).decode()
