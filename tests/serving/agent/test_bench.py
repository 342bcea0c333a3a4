"""What the agent adds is measured against the call that it makes; its tools, against all that they stand for."""

from __future__ import annotations

import pytest

from prompts import PromptTokenizer
from serving import bench_upstream
from serving.bench_agent import BEHIND, execution, prompt_tokens
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.test_results import source

pytestmark = pytest.mark.anyio


async def test_what_execute_adds_is_the_difference_to_a_direct_call(database: str) -> None:
    async with serving(bench_upstream.app()) as port, running(database, [source(port, "bench")]) as agent:
        numbers = await execution(f"http://127.0.0.1:{agent.port}/mcp", f"http://127.0.0.1:{port}/mcp", 5)
    assert 0 < numbers["agent_direct_ms_p50"] < numbers["agent_execute_ms_p50"]
    assert 0 < numbers["agent_execute_added_ms_p50"] <= numbers["agent_execute_added_ms_p99"]


def test_two_tools_stay_within_800_tokens_where_all_of_them_do_not(qwen3_tokenizer) -> None:
    numbers = prompt_tokens(PromptTokenizer(qwen3_tokenizer))
    assert max(numbers[f"agent_prompt_tokens_{count}"] for count in BEHIND) <= 800
    injected = [numbers[f"injected_prompt_tokens_{count}"] for count in BEHIND]
    assert injected[0] > 800
    assert injected[-1] > 500 * injected[0]
