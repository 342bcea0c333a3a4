"""The database goes and comes back, and the disk is full: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from serving.catalog.store import Store
from serving.types import StoreError
from tests.faults.conftest import QUESTION, Running, profile, running
from tests.faults.vllm_process import VllmProcess
from tests.serving.catalog.postgres import PostgresServer

pytestmark = pytest.mark.anyio
SECONDS = 60
TOOLS = QUESTION["candidates"]


async def write(router: Running, *tools: object) -> httpx.Response:
    return await router.client.post("/v1/catalogs/main/candidates", json={"candidates": list(tools)})


async def ids(router: Running) -> set[str]:
    page = (await router.client.get("/v1/catalogs/main/candidates")).json()
    return {entry["id"] for entry in page["candidates"]}


async def test_the_database_goes_and_comes_back(vllm: VllmProcess, smollm2: Path) -> None:
    postgres = PostgresServer()
    postgres.start()
    try:
        settings = profile(vllm.url, smollm2, catalog={"database": postgres.new_database(), "poll_s": 0.05})
        async with running(settings) as router:
            await router.client.put("/v1/catalogs/main")
            assert (await write(router, TOOLS[0])).status_code == 200
            asked = {"query": "weather", "catalog": "main"}
            assert (await router.client.post("/v1/route", json=asked)).status_code == 200
            postgres.stop()
            try:
                for answer in (await write(router, TOOLS[1]), await router.client.get("/v1/catalogs")):
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
                # What was chosen among lately is in memory.
                assert (await router.client.post("/v1/route", json=asked)).status_code == 200
                assert (await router.ready())["ready"]
            finally:
                postgres.start()
            async with asyncio.timeout(SECONDS):
                while (await write(router, TOOLS[1])).status_code != 200:
                    await asyncio.sleep(0.05)
            assert await ids(router) == {tool["name"] for tool in TOOLS}
            async with asyncio.timeout(SECONDS):
                while router.metric("catalog_sync_age_seconds") > 1:
                    await asyncio.sleep(0.05)
    finally:
        postgres.stop()
        postgres.remove()


@contextmanager
def full_disk(at: int) -> Iterator[None]:
    """No file of this process grows beyond `at` bytes: the kernel refuses it as it does where the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_the_disk_is_full_and_has_room_again(vllm: VllmProcess, smollm2: Path, tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    large = [{"name": f"tool_{n}", "description": "so it goes " * 2_000} for n in range(50)]
    async with running(profile(vllm.url, smollm2, catalog={"database": f"sqlite:///{file}"})) as router:
        await router.client.put("/v1/catalogs/main")
        assert (await write(router, *TOOLS)).status_code == 200
        kept = await ids(router)
        with full_disk(256 * 2**10):
            refused = await write(router, *large)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
            assert await ids(router) == kept, "some of a refused request was written"
            asked = {"query": "weather", "catalog": "main"}
            assert (await router.client.post("/v1/route", json=asked)).status_code == 200
        assert (await write(router, *large)).status_code == 200
        assert await ids(router) >= kept
    again = Store(f"sqlite:///{file}")
    await again.start()
    assert {entry.candidate.id for entry in (await again.changes("main")).entries} >= kept
    await again.close()


async def test_a_database_that_is_full_from_the_start_is_told(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'catalog.db'}")
    with full_disk(4 * 2**10), pytest.raises(StoreError, match="cannot be used"):
        await store.start()
    await store.close()
