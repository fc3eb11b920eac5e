"""What koordlet serves and keeps: metrics, health and pages; the audit log; the snapshot of the metric cache."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from koordlet.api.encoding.wire import encode_plain
from koordlet.app.clock import SYSTEM_CLOCK, boot_clock
from koordlet.app.http import HttpServer
from koordlet.app.logging import get_logger
from koordlet.audit import LogAuditor, node
from koordlet.audit.api import SWEEP_PERIOD_S, Readers, events_handler, no_events
from koordlet.audit.logfile import FLUSH_PERIOD_S, AuditLogFile
from koordlet.metriccache.snapshot import SnapshotError, load, save
from koordlet.metricsadvisor.views import Views
from koordlet.prometheus.registries import Rows
from koordlet.version import VERSION
from koordlet.wiring.context import Context

log = get_logger(__name__)

SNAPSHOT_MAX_AGE = 1800.0


def audit(context: Context) -> None:
    """Set `context.auditor` by the gates, and serve `/events`."""
    options = context.options
    served = context.gates.enabled("AuditEventsHTTPHandler")
    if not context.gates.enabled("AuditEvents"):
        if served:
            context.routes.append(web.get("/events", no_events))
        return
    audited = AuditLogFile(Path(options.audit_log_dir), options.audit_max_disk_space_mb)
    context.auditor = LogAuditor(audited, options.audit_verbose)
    context.health.check("audit", lambda: audited.problem)

    def outcomes() -> Rows:
        return [(("written",), audited.written), (("dropped",), audited.dropped)]

    context.registries.view("audit_events_total", outcomes)
    context.registries.view("audit_written_bytes_total", lambda: [((), audited.bytes)])
    if served:
        readers = Readers(audited.directory, options.audit_max_concurrent_readers)
        handler = events_handler(readers, audited.flush, options.audit_max_events_limit)
        context.routes.append(web.get("/events", handler, allow_head=False))
        context.runner.add(context.periodic("audit-sweep", SWEEP_PERIOD_S, readers.sweep))

    async def last_event() -> None:
        context.auditor.record(3, node(), "KoordletStopped")
        audited.close()

    context.runner.add_stop("audit log", last_event)
    context.runner.add(context.periodic("audit-flush", FLUSH_PERIOD_S, audited.flush, immediate=False))
    context.auditor.record(3, node(), "KoordletStarted", f"version {VERSION}")


def serve(context: Context, views: Views) -> None:
    """The HTTP server; pages are those of `context.routes` and `/top`. ProfileServer have their own."""

    async def top(_: web.Request) -> web.Response:
        picture = views.top(context.node_name, SYSTEM_CLOCK.now())
        return web.Response(body=encode_plain(picture), content_type="application/json")

    both = (context.registries.internal, context.registries.external)
    context.runner.add(
        HttpServer(
            context.options.addr,
            registries={
                "/internal-metrics": context.registries.internal,
                "/external-metrics": context.registries.external,
                "/metrics": both,
            },
            health=context.health,
            routes=[web.get("/top", top), *context.routes],
        )
    )
    if context.options.enable_pprof:
        from koordlet.app.pprof import ProfileServer

        context.runner.add(ProfileServer(context.options.pprof_addr))


def snapshots(context: Context) -> None:
    """Take up what the metric cache held before a restart, and keep it on disk."""
    snapshot = Path(context.options.state_dir) / "metrics.npz"
    try:
        count = load(context.cache, snapshot, boot_clock(), context.boot_id, max_age=SNAPSHOT_MAX_AGE)
        log.info("metric cache restored", series=count)
    except SnapshotError as error:
        log.warning("metric cache starts empty", error=str(error))

    def write() -> None:
        save(context.cache, snapshot, boot_clock(), context.boot_id)

    async def last_write() -> None:
        write()

    context.runner.add_stop("metric snapshot", last_write)
    context.runner.add(context.periodic("metric-snapshot", context.options.snapshot_interval, write, immediate=False))
