"""`python -m control.standalone.apiserver --data-dir D --secure-port N`: the API server as a process."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from control.standalone.apiserver.server import AlreadyRunning, ApiServer
from control.standalone.apiserver.tls import PkiError
from control.standalone.store import StoreError
from koordlet.app.flags import Duration, flag, parse
from koordlet.app.logging import LoggingOptions, begin, get_logger
from koordlet.app.runner import Runner, run

log = get_logger(__name__)


@dataclass
class ApiServerOptions(LoggingOptions):
    data_dir: str = flag("", "directory of state, keys and admin.kubeconfig")
    secure_port: int = flag(6443, "TLS port; 0: any free port", minimum=0)
    bind_address: str = flag("127.0.0.1", "address to listen on")
    advertise_address: str = flag("", "address clients use (default: the bind address)")
    token_auth_file: str = flag("", 'CSV of static tokens: token,user,uid,"group1,group2"')
    anonymous_auth: bool = flag(True, "treat requests without credentials as system:anonymous")
    audit_log_path: str = flag("", "append one JSON line per request to this file")
    kubelet_certificate_authority: str = flag(
        "", "PEM file that verifies the certificates of kubelets (default: the server's own authority)"
    )
    durability: str = flag(
        "normal", "normal survives kill -9; full survives power loss too", choices=("normal", "full")
    )
    history: Duration = flag("5m", "how long the history for watches is kept", name="watch-history", minimum=1)
    history_events: int = flag(
        50_000, "maximum number of changes in the history", name="watch-history-events", minimum=100
    )


def main() -> int:
    options = parse(ApiServerOptions, sys.argv[1:], prog="apiserver", description=__doc__ or "")
    begin(options)
    if not options.data_dir:
        log.error("--data-dir is required")
        return 2
    server = ApiServer(
        Path(options.data_dir),
        host=options.bind_address,
        port=options.secure_port,
        advertise=options.advertise_address,
        token_auth_file=Path(options.token_auth_file) if options.token_auth_file else None,
        audit_log=Path(options.audit_log_path) if options.audit_log_path else None,
        anonymous=options.anonymous_auth,
        kubelet_ca=Path(options.kubelet_certificate_authority) if options.kubelet_certificate_authority else None,
        synchronous="FULL" if options.durability == "full" else "NORMAL",
        history_seconds=options.history,
        history_events=options.history_events,
    )
    return run(_serve(server))


async def _serve(server: ApiServer) -> int:
    runner = Runner()
    runner.add(server)
    try:
        return await runner.run()
    except (AlreadyRunning, StoreError, PkiError, OSError) as error:
        log.error("Cannot serve", err=error)
        return 1
    finally:
        await asyncio.shield(server.stop())


if __name__ == "__main__":
    raise SystemExit(main())
