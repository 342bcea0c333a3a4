import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from serving.api.limits import TIMEOUT_HEADER
from serving.config import Config

pytestmark = pytest.mark.anyio

LIMIT = 4096
PLACES = 20


@pytest.fixture
def config() -> Config:
    return Config.model_validate({"server": {"max_body_bytes": LIMIT, "max_concurrent": PLACES}})


def body(size: int) -> bytes:
    text = b'{"query": "x", "candidates": []}'
    return text + b" " * (size - len(text))


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("size", "status"), [(LIMIT, 200), (LIMIT + 1, 413)])
async def test_a_body_has_a_limit(client: Any, chunked: bool, size: int, status: int) -> None:
    response = await client.post("/v1/route", content=chunks(body(size)) if chunked else body(size))
    assert response.status_code == status
    if status == 413:
        assert response.json()["error"]["code"] == "request_too_large"
        assert "4096 bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_real_server_answers_a_body_that_is_too_large(url: str, chunked: bool) -> None:
    content = body(50_000)
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/route", content=chunks(content) if chunked else content)
        assert response.status_code == 413
        assert (await client.post(f"{url}/v1/route", content=body(100))).status_code == 200


async def test_a_full_house_is_busy(client: Any, server: Any, tools: Any) -> None:
    server.engine.open.clear()
    asked = {"query": "weather", "candidates": tools}
    inside = [asyncio.create_task(client.post("/v1/route", json=asked)) for _ in range(PLACES)]
    for _ in range(PLACES):
        await server.engine.asked.acquire()
    assert server.metric("decisions_in_progress") == PLACES
    refused = await client.post("/v1/route", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
    assert int(refused.headers["retry-after"]) >= 1
    chat = {"model": "base/words", "messages": [{"role": "user", "content": "x"}]}
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 429
    assert (await client.get("/health/ready")).status_code == 200
    server.engine.open.set()
    assert {(await response).status_code for response in inside} == {200}
    assert (await client.post("/v1/route", json=asked)).status_code == 200
    assert server.metric("decisions_in_progress") == 0


@pytest.mark.parametrize("said", ["soon", "0", "-1", "nan", "inf", ""])
async def test_a_timeout_is_a_number_of_seconds(client: Any, tools: Any, said: str) -> None:
    asked = {"query": "weather", "candidates": tools}
    answer = await client.post("/v1/route", json=asked, headers={TIMEOUT_HEADER: said})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, TIMEOUT_HEADER)
    assert "number of seconds above 0" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("said", "seconds"), [(None, 30.0), ("2.5", 2.5), ("1e9", 30.0)])
async def test_the_deadline_travels_to_the_engine(
    client: Any, server: Any, tools: Any, said: str | None, seconds: float
) -> None:
    before = time.monotonic()
    headers = {} if said is None else {TIMEOUT_HEADER: said}
    answer = await client.post("/v1/route", json={"query": "weather", "candidates": tools}, headers=headers)
    assert answer.status_code == 200
    [question] = server.engine.scored
    assert before + seconds <= question.deadline <= time.monotonic() + seconds


async def test_a_client_may_leave_while_it_sends(url: str, server: Any) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/route HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with httpx.AsyncClient() as client, asyncio.timeout(60):
        while not server.metric("disconnects_total"):
            await client.get(f"{url}/health/live")
    assert server.metric("requests_total", surface="route", outcome="disconnected") == 1


async def test_of_twenty_clients_five_leave(url: str, server: Any, tools: Any) -> None:
    """The first to arrive is being worked on, the others wait. It leaves, and so do four that wait."""
    server.engine.open.clear()
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=PLACES)) as client:

        async def ask(number: int) -> httpx.Response:
            query = f"weather number{number:02}"
            return await client.post(f"{url}/v1/route", json={"query": query, "candidates": tools}, timeout=60)

        asking = []
        for number in range(PLACES):  # one after another, so that their order in the queue is known
            asking.append(asyncio.create_task(ask(number)))
            await server.engine.asked.acquire()
        leaving = [0, 3, 7, 11, 19]
        for number in leaving:
            asking[number].cancel()
        await asyncio.wait([asking[number] for number in leaving])
        async with asyncio.timeout(60):
            while server.metric("disconnects_total") < len(leaving):
                await client.get(f"{url}/health/live")  # lets the server see them leave
        assert server.engine.cancelled == 1
        server.engine.open.set()
        answers = [await asking[number] for number in range(PLACES) if number not in leaving]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["decision"]["id"] for answer in answers} == {"get_weather"}
    seen = [server.engine.tokenizer.decode(request.prefix) for request in server.engine.scored]
    worked_on = [number for number in range(PLACES) if any(f"number{number:02}" in text for text in seen)]
    assert worked_on == [number for number in range(PLACES) if number == 0 or number not in leaving]
    assert server.metric("requests_total", surface="route", outcome="disconnected") == len(leaving)
    assert server.metric("decisions_in_progress") == 0
