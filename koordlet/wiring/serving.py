"""What koordlet serves and keeps: metrics, health and pages; the audit log; the snapshot of the metric cache."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from koordlet.api.encoding.wire import encode_plain
from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.app.connections import ConnectionLimits
from koordlet.app.http import HttpServer
from koordlet.app.logging import get_logger
from koordlet.audit import node
from koordlet.audit.api import SWEEP_PERIOD_S, Readers, events_handler, no_events
from koordlet.audit.logfile import FLUSH_PERIOD_S
from koordlet.kube.securepages import SecurePages
from koordlet.metriccache.snapshot import SnapshotError, load, save
from koordlet.metricsadvisor.views import Views
from koordlet.prometheus.registries import Rows
from koordlet.version import VERSION
from koordlet.wiring.context import WiringContext

log = get_logger(__name__)

SNAPSHOT_MAX_AGE_S = 1800.0


def audit(context: WiringContext) -> None:
    """Run the audit log, and serve `/events`."""
    options = context.options
    served = context.gates.enabled("AuditEventsHTTPHandler")
    log_file = context.audit_log
    if log_file is None:
        if served:
            context.routes.append(web.get("/events", no_events))
        return
    context.health.check("audit", lambda: log_file.problem)

    def outcomes() -> Rows:
        return [(("written",), log_file.written), (("dropped",), log_file.dropped)]

    context.registries.view("audit_events_total", outcomes)
    context.registries.view("audit_written_bytes_total", lambda: [((), log_file.bytes)])
    if served:
        readers = Readers(log_file.directory, options.audit_max_concurrent_readers)
        handler = events_handler(readers, log_file.flush, options.audit_max_events_limit)
        context.routes.append(web.get("/events", handler, allow_head=False))
        context.runner.add(context.periodic("audit-sweep", SWEEP_PERIOD_S, readers.sweep))

    async def last_event() -> None:
        context.auditor.record(3, node(), "KoordletStopped")
        log_file.close()

    context.runner.add_stop("audit log", last_event)
    context.runner.add(context.periodic("audit-flush", FLUSH_PERIOD_S, log_file.flush, immediate=False))
    context.auditor.record(3, node(), "KoordletStarted", f"version {VERSION}")


def serve(context: WiringContext, views: Views) -> None:
    """The HTTP server with `/top` and the pages of `context.routes`. Profiles have their own server."""

    async def top(_: web.Request) -> web.Response:
        page = views.top(context.node_name, SYSTEM_CLOCK.now())
        return web.Response(body=encode_plain(page), content_type="application/json")

    both = (context.registries.internal, context.registries.external)
    options, secure = context.options, context.secure_pages
    if secure is not None:
        context.runner.add_stop("page reviews", secure.close)
        context.runner.add(secure.reload)
    tls, middlewares = SecurePages.of(secure if options.authorizes(options.addr) else None)
    context.runner.add(
        HttpServer(
            options.addr,
            registries={
                "/internal-metrics": context.registries.internal,
                "/external-metrics": context.registries.external,
                "/metrics": both,
            },
            health=context.health,
            routes=[web.get("/top", top), *context.routes],
            tls=tls,
            middlewares=middlewares,
            listener=context.listener,
            limits=ConnectionLimits(),
        )
    )
    if options.enable_pprof:
        from koordlet.app.pprof import ProfileServer

        tls, middlewares = SecurePages.of(secure if options.authorizes(options.pprof_addr) else None)
        context.runner.add(ProfileServer(options.pprof_addr, tls=tls, middlewares=middlewares))


def snapshots(context: WiringContext) -> None:
    """Restore the metric cache from its snapshot, and write snapshots."""
    snapshot = Path(context.options.state_dir) / "metrics.npz"
    try:
        count = load(context.cache, snapshot, boot_clock(), context.boot_id, max_age=SNAPSHOT_MAX_AGE_S)
        log.info("Metric cache restored", series=count)
    except SnapshotError as error:
        log.warning("Metric cache starts empty", error=str(error))

    def write() -> None:
        save(context.cache, snapshot, boot_clock(), context.boot_id)

    async def last_write() -> None:
        write()

    context.runner.add_stop("metric snapshot", last_write)
    context.runner.add(context.periodic("metric-snapshot", context.options.snapshot_interval, write, immediate=False))
