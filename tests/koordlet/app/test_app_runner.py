"""Order of starting and stopping, signals, and what ends a process."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from koordlet.app.runner import Runner, run
from tests.fakeclock import FakeClock
from tests.waiting import until


class Recorder:
    def __init__(
        self,
        name: str,
        events: list[Any],
        fail_start: OSError | asyncio.CancelledError | None = None,
        fail_stop: OSError | None = None,
        hang: bool = False,
    ) -> None:
        self.name, self.events = name, events
        self.fail_start, self.fail_stop, self.hang = fail_start, fail_stop, hang

    async def start(self) -> None:
        self.events.append(f"+{self.name}")
        if self.fail_start:
            raise self.fail_start

    async def stop(self) -> None:
        self.events.append(f"-{self.name}")
        if self.fail_stop:
            raise self.fail_stop
        if self.hang:
            await asyncio.Event().wait()


async def test_first_signal_stops_in_reverse_order() -> None:
    events: list[Any] = []
    runner = Runner()
    runner.add(Recorder("a", events))
    runner.add_stop("restore", lambda: asyncio.sleep(0, events.append("-restore")))  # type: ignore[func-returns-value]
    runner.add(Recorder("b", events))
    task = asyncio.create_task(runner.run())
    await until(lambda: "+b" in events)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0
    assert events == ["+a", "+b", "-b", "-restore", "-a"]


async def test_a_service_that_cannot_start_stops_the_others(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    runner = Runner()
    runner.add(Recorder("a", events))
    runner.add(Recorder("b", events, fail_start=OSError("port taken")))
    runner.add(Recorder("c", events))
    assert await runner.run() == 1
    assert events == ["+a", "+b", "-b", "-a"]
    assert "port taken" in caplog.text


@pytest.mark.parametrize("how", ["raises", "ends", "cancelled"])
async def test_a_critical_task_takes_the_process_down_in_order(how: str) -> None:
    events: list[Any] = []
    runner = Runner()

    async def work() -> None:
        if how == "raises":
            raise ValueError("broken")
        if how == "cancelled":
            raise asyncio.CancelledError  # awaiting a cancelled task raises it

    runner.add(Recorder("a", events))
    runner.spawn("work", work)
    assert await runner.run() == 1
    assert events == ["+a", "-a"]


@pytest.mark.parametrize("error", [None, ValueError("broken")])
async def test_an_uncritical_task_may_end_or_fail_and_failures_are_logged(
    error: ValueError | None, caplog: pytest.LogCaptureFixture
) -> None:
    runner, done = Runner(), asyncio.Event()

    async def work() -> None:
        done.set()
        if error:
            raise error

    runner.spawn("work", work, critical=False)
    task = asyncio.create_task(runner.run())
    await done.wait()
    await until(lambda: error is None or "broken" in caplog.text)
    runner.stop()
    assert await task == 0
    assert ("broken" in caplog.text) == (error is not None)


async def test_failing_and_hanging_stops_do_not_prevent_others(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    clock = FakeClock()
    runner = Runner(clock=clock)
    runner.add(Recorder("a", events))
    runner.add(Recorder("hangs", events, hang=True))
    runner.add(Recorder("raises", events, fail_stop=OSError("busy")))
    task = asyncio.create_task(runner.run())
    await until(lambda: "+raises" in events)
    runner.stop()
    await until(lambda: "-hangs" in events)
    await clock.advance(11)
    assert await task == 1
    assert events[-3:] == ["-raises", "-hangs", "-a"]
    assert "did not stop in time" in caplog.text and "busy" in caplog.text


async def test_a_service_whose_start_is_cancelled_by_others_is_no_success(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    runner = Runner()
    runner.add(Recorder("a", events))
    runner.add(Recorder("b", events, fail_start=asyncio.CancelledError()))
    assert await runner.run() == 1
    assert events == ["+a", "+b", "-b", "-a"]
    assert "Cannot start" in caplog.text


async def test_stop_while_starting() -> None:
    events: list[Any] = []
    runner = Runner()

    class Slow(Recorder):
        async def start(self) -> None:
            await super().start()
            await asyncio.Event().wait()

    runner.add(Recorder("a", events))
    runner.add(Slow("slow", events))
    runner.add(Recorder("never", events))
    task = asyncio.create_task(runner.run())
    await until(lambda: "+slow" in events)
    runner.stop()
    assert await task == 0
    assert events == ["+a", "+slow", "-slow", "-a"]


def test_second_signal_ends_at_once() -> None:
    code = (
        "import asyncio\n"
        "from koordlet.app.runner import Runner, run\n"
        "r = Runner()\n"
        "r.add_stop('hang', lambda: asyncio.sleep(60))\n"
        "r.spawn('hello', lambda: hello())\n"
        "async def hello():\n"
        "    print('up', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "async def main(): return await r.run()\n"
        "raise SystemExit(run(main()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    while process.poll() is None:  # the first may still be in delivery: signals of one kind coalesce
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    process.stdout.close()
    assert process.returncode == 1


def test_run_uses_uvloop_where_installed() -> None:
    async def kind() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(kind()).startswith("uvloop")
