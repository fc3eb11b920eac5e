"""Chooses where a command gets its pages: a cluster, what `koordctl up` started here, or URLs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from control.ctl.cluster.access import ClusterSources, LocalSources, opened
from control.ctl.errors import CtlError
from control.ctl.node.state import NodeSettings
from control.ctl.node.state import load as load_state
from control.ctl.views.koordletclient import DEFAULT_URL
from control.ctl.views.schedulerclient import DEFAULT_SCHEDULER_URL

F = TypeVar("F", bound=Callable[..., Any])
STATE_DIR = Path("/var/lib/koord")

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=STATE_DIR,
    show_default=True,
    help="Directory of the node's state and logs.",
)


@dataclass(frozen=True)
class Where:
    """The options of a command, and what there is on this machine."""

    state_dir: Path
    koordlet_url: str | None = None
    scheduler_url: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    node: str | None = None

    def is_cluster(self, *, node_here: bool, kubeconfig_here: bool) -> bool:
        """A URL selects a server; cluster options select a cluster; else the node that `up` started, else a cluster
        if there is a kubeconfig, else the standard ports of this machine."""
        if self.koordlet_url or self.scheduler_url:
            return False
        if self.kubeconfig or self.context or self.node:
            return True
        return kubeconfig_here and not node_here


def cluster_options(command: F) -> F:
    """`--kubeconfig` and `--context`."""
    for option in (
        click.option("--context", help="Context of the kubeconfig.  [default: its current context]"),
        click.option("--kubeconfig", help="kubeconfig of the cluster.  [default: KUBECONFIG, ~/.kube/config]"),
    ):
        command = option(command)
    return command


@asynccontextmanager
async def sources(where: Where) -> AsyncIterator[ClusterSources | LocalSources]:
    """The sources that `where` selects. Raises CtlError."""
    settings = node_settings(where.state_dir)
    if where.is_cluster(node_here=settings is not None, kubeconfig_here=has_kubeconfig()):
        async with opened(where.kubeconfig, where.context) as cluster:
            yield cluster
        return
    yield LocalSources(
        where.koordlet_url or (settings.koordlet_url if settings is not None else DEFAULT_URL),
        where.scheduler_url or (settings.scheduler_url if settings is not None else DEFAULT_SCHEDULER_URL),
    )


def node_settings(state_dir: Path) -> NodeSettings | None:
    """The settings of the node brought up here; None also when the state is not readable."""
    try:
        return load_state(state_dir).settings
    except CtlError:
        return None


def has_kubeconfig() -> bool:
    """Whether a cluster is configured."""
    return bool(os.environ.get("KUBECONFIG")) or (Path.home() / ".kube/config").exists()
