"""`koordctl migrations` shows jobs and their progress."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from control.ctl.errors import CtlError
from control.ctl.main import cli
from control.ctl.views.migrations import migration_page, migrations_table, summaries, summary_of
from control.standalone.apiserver import ApiServer
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.encoding import crdgen
from koordlet.kube import Client, ClientConfig, PatchKind
from tests.control.descheduler.migration.build import NOW, job, moment

WHY = {"koordinator.sh/evict-trigger": "LowNodeLoad", "koordinator.sh/evict-reason": "node is overutilized"}
PASSED = {"descheduler.koordinator.sh/passed-arbitration": "true"}


def moving() -> PodMigrationJob:
    conditions = [
        {"type": "ReservationCreated", "status": "True", "lastTransitionTime": moment(NOW - 30)},
        {
            "type": "ReservationScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no room",
            "lastTransitionTime": moment(NOW - 20),
        },
    ]
    status = {
        "conditions": conditions,
        "status": "ReservationScheduled",
        "reason": "Unschedulable",
        "message": "no room",
        "nodeName": "n2",
    }
    return job("web-1", name="m1", phase="Running", age=40, annotations=WHY, status=status)


def test_a_line_per_job() -> None:
    jobs = [
        job("web-2", name="m2", age=5),
        moving(),
        job("web-3", name="m3", age=5, annotations=PASSED),
        job("web-4", name="m4", age=90, phase="Succeeded", mode="EvictDirectly"),
        job("web-5", name="m5", age=90, paused=True),
    ]
    migrations = summaries(jobs, NOW)
    assert [(each.name, each.phase) for each in migrations] == [
        ("m1", "Running"),
        ("m2", "Waiting"),
        ("m3", "Starting"),
        ("m4", "Succeeded"),
        ("m5", "Paused"),
    ]
    assert [each.name for each in summaries(jobs, NOW, ended=False)] == ["m1", "m2", "m3", "m5"]
    console = Console(file=StringIO(), width=300)
    console.print(migrations_table(migrations[:1]))
    assert isinstance(console.file, StringIO)
    line = " ".join(console.file.getvalue().splitlines()[1].split())
    assert line == (
        "m1 default/web-1 Running ReservationScheduled 1/5 n2 - 40s node is overutilized Unschedulable: no room"
    )


def test_progress_counts_the_steps_of_the_mode() -> None:
    done = summary_of(job("a", phase="Succeeded", mode="EvictDirectly"), NOW)
    assert (done.steps_done, done.steps) == (1, 1)


def test_one_job_with_its_steps() -> None:
    lines = [line.plain for line in migration_page(moving(), NOW)]
    assert lines == [
        "m1 moves pod default/web-1: Running, 1 of 5 steps",
        "  requested by LowNodeLoad because node is overutilized",
        "  to node n2",
        "  Unschedulable: no room",
        "     30s ago  ReservationCreated=True",
        "     20s ago  ReservationScheduled=False  Unschedulable no room",
    ]


async def test_the_jobs_of_a_server(tmp_path: Path) -> None:
    async with (
        ApiServer(tmp_path / "api", controllers=False) as server,
        Client(ClientConfig.load(server.kubeconfig_path)) as admin,
    ):

        def run(*arguments: str) -> tuple[int, str, BaseException | None]:
            result = CliRunner().invoke(cli, ["migrations", "--kubeconfig", str(server.kubeconfig_path), *arguments])
            return result.exit_code, result.output, result.exception

        missing = await asyncio.to_thread(run)
        assert isinstance(missing[2], CtlError) and "has no PodMigrationJobs" in str(missing[2])
        for name, crd in crdgen.documents().items():
            if "podmigrationjobs" in name:
                path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
                params = {"fieldManager": "t", "force": "true"}
                await admin.raw("PATCH", path, params=params, body=crd, content_type=PatchKind.APPLY.value)
        assert (await asyncio.to_thread(run))[1] == "No pod is being moved.\n"
        waiting = job("a", name="m1")
        waiting.metadata.resource_version = waiting.metadata.uid = ""
        await admin.create(waiting)
        status, output, _ = await asyncio.to_thread(run, "-o", "json")
        assert status == 0
        assert [(each["name"], each["pod"], each["phase"]) for each in json.loads(output)] == [
            ("m1", "default/a", "Waiting")
        ]
        assert "pod: default/a" in (await asyncio.to_thread(run, "-o", "yaml"))[1]
        context = await asyncio.to_thread(run, "--context=other")
        assert isinstance(context[2], CtlError) and "other" in str(context[2])
        unknown = await asyncio.to_thread(run, "nope")
        assert isinstance(unknown[2], CtlError) and "there is no PodMigrationJob nope" in str(unknown[2])


@pytest.mark.parametrize("argument", ["--help"])
def test_the_help_names_the_argument(argument: str) -> None:
    result = CliRunner().invoke(cli, ["migrations", argument])
    assert result.exit_code == 0
    assert "how far each migration is" in result.output
