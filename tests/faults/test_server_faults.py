"""The server is told to end while it is asked, its callers leave by the thousand, and the clock jumps."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tests.conftest import ROOT
from tests.faults.conftest import QUESTION, profile, running
from tests.faults.vllm_process import VllmProcess

pytestmark = pytest.mark.anyio
SECONDS = 120
LEAVING, TOGETHER = 1_000, 50
# Where the time of day may be asked for: to be shown, or to be kept where it outlives every process.
WALL_CLOCK = {
    "serving/agent/threads.py",  # when a thread is forgotten, after days, by any replica
    "serving/api/chat_answer.py",  # `created`
    "serving/api/service.py",  # `created`
    "serving/audit.py",
    "serving/catalog/sync.py",  # `synced_at`
    "serving/logs.py",
}


async def until_ready(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=5) as client, asyncio.timeout(SECONDS):
        while True:
            try:
                if (await client.get("/health/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def test_sigterm_under_load_loses_nothing_that_was_taken(
    vllm: VllmProcess, smollm2: Path, tmp_path: Path
) -> None:
    """After SIGTERM it is not ready, still listens for a while, and answers all that it has taken."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file = tmp_path / "profile.yaml"
    settings = profile(vllm.url, smollm2, engine={"timeout_s": 30.0}, server={"drain_s": 3.0, "log_format": "json"})
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "serving.cli", "serve", "--config", str(file), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)  # noqa: ASYNC220
    url = f"http://127.0.0.1:{port}"
    try:
        await until_ready(url)
        vllm.answer("well", seconds=0.2)
        statuses: list[int] = []
        withdrawn = asyncio.Event()

        async def caller() -> None:
            """Asks as a load balancer sends: until it has seen that the server is not ready."""
            async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
                while not withdrawn.is_set():
                    statuses.append((await client.post("/v1/route", json=QUESTION)).status_code)

        callers = [asyncio.create_task(caller()) for _ in range(8)]
        while len(statuses) < 16:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
            while (await client.get("/health/ready")).status_code == 200:
                await asyncio.sleep(0.01)
        assert process.poll() is None
        withdrawn.set()
        await asyncio.gather(*callers)
        _, errors = await asyncio.to_thread(process.communicate, None, SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert set(statuses) == {200}
    assert process.returncode == -signal.SIGTERM, errors.decode()
    assert all(line.startswith(b"{") for line in errors.splitlines())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_a_thousand_callers_leave_abruptly(vllm: VllmProcess, smollm2: Path) -> None:
    """Some before their question is whole, some while it is worked on; each with a reset, as of a process that died."""
    vllm.answer("well", seconds=0.02)
    settings = profile(vllm.url, smollm2, server={"max_concurrent": 32, "canary_interval_s": 3_600.0})
    async with running(settings) as router:
        await router.ask()
        host, port = router.url.removeprefix("http://").split(":")
        body = httpx.Request("POST", router.url, json=QUESTION).read()
        head = f"POST /v1/route HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        before_tasks, before_descriptors = len(asyncio.all_tasks()), descriptors()

        async def leave(number: int) -> None:
            _, writer = await asyncio.open_connection(host, int(port))
            whole = head + body
            writer.write(whole if number % 2 else whole[: number % len(whole)])
            await writer.drain()
            await asyncio.sleep(number % 7 / 200)
            # Reset at once, whatever is on its way.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        for start in range(0, LEAVING, TOGETHER):
            await asyncio.gather(*(leave(number) for number in range(start, start + TOGETHER)))
        async with asyncio.timeout(SECONDS):
            while (
                router.metric("queue_requests")
                or router.metric("engine_requests")
                or len(asyncio.all_tasks()) > before_tasks
                or descriptors() > before_descriptors
            ):
                await asyncio.sleep(0.05)
                await router.ask()  # by which the pool looks for connections to the engine that were idle for too long
        assert router.metric("disconnects_total") > 0
        assert router.metric("queue_tokens") == router.metric("decisions_in_progress") == 0
        assert (await router.ask()).status_code == 200
        assert router.metric("errors_total", error="Exception") == 0


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
async def test_the_clock_may_jump(
    vllm: VllmProcess, smollm2: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """By a day, in the middle of a question: no deadline passes, no canary is overdue, no rate is lifted."""
    vllm.answer("well", seconds=0.1)
    settings = profile(vllm.url, smollm2, server={"api_keys": ["k"], "requests_per_minute_per_key": 2})
    async with running(settings) as router:
        key = {"authorization": "Bearer k"}
        asking = asyncio.create_task(router.ask(**key))
        while not router.metric("engine_requests"):
            await asyncio.sleep(0.001)
        wall = time.time
        monkeypatch.setattr(time, "time", lambda: wall() + jump)
        assert (await asking).status_code == 200
        assert (await router.ready())["ready"]
        assert (await router.ask(**key)).status_code == 200
        assert (await router.ask(**key)).status_code == 429


def test_no_duration_is_measured_by_the_time_of_day() -> None:
    """`time.time` and `datetime.now` are called only where what they say is shown."""
    callers = set()
    for path in (ROOT / "serving").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = (node.value.id, node.attr)
                if called in {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}:
                    callers.add(str(path.relative_to(ROOT)))
    assert callers <= WALL_CLOCK
