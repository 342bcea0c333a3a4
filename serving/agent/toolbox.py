"""What a running Light Routing Agent offers to the loop: its `route` to discover, its `execute` to invoke.

Knows the agent and one caller. Does not know the chat model. One thread lasts as long as the run, so that a candidate
that says something else than was shown is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.types import InputRequiredResult

from serving.agent.arguments import Execution
from serving.agent.description import summary
from serving.agent.loop import Discovery, Observation
from serving.agent.threads import result_text
from serving.types import Candidate, ForbiddenError, Message

if TYPE_CHECKING:
    from serving.agent.agent import LightRoutingAgent
    from serving.catalog.names import Names
    from serving.keys import Caller

# As many of a ranking as may become callable: more than a prefilter keeps.
_SHOWN = 50


class AgentToolbox:
    """See `serving.agent.loop.Toolbox`. Of one run, at whose end its thread is forgotten."""

    def __init__(self, agent: LightRoutingAgent, caller: Caller) -> None:
        self._agent = agent
        self._caller = caller
        self._thread: str | None = None
        self._names: Names | None = None

    async def __aenter__(self) -> AgentToolbox:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._thread is not None:
            with anyio.CancelScope(shield=True), suppress(ForbiddenError):  # it may have expired
                await self._agent.threads.delete(self._thread, self._caller.owner)

    async def behind(self) -> str:
        """The servers behind the agent, and what they deal in."""
        return summary(await self._agent.visible(self._caller))

    def name(self, candidate: Candidate) -> str:
        """Its surface name in the catalogue."""
        if self._names is None:
            raise RuntimeError("nothing was discovered yet")
        return self._names.surface[candidate.id]

    async def discover(self, messages: Sequence[Message]) -> Discovery:
        """What the router decides. Raises as `LightRoutingAgent.route`."""
        query = next(message.content for message in reversed(messages) if message.role == "user")
        routed = await self._agent.route(
            query, caller=self._caller, thread=self._thread, history=messages, alternatives=_SHOWN
        )
        self._thread = routed.thread
        self._names = await self._agent.names(self._caller)
        decision = routed.decision
        chosen = decision.chosen.candidate if decision.chosen else None
        # What was removed in this moment has no name any more.
        ranked = [ranked.candidate for ranked in decision.ranking if ranked.candidate.id in self._names.surface]
        down = ", ".join(sorted(routed.unavailable))
        return Discovery(
            chosen if chosen in ranked else None,
            [candidate for candidate in ranked if candidate != chosen],
            decision.prompt_tokens,
            f"Not reachable now: {down}." if down else "",
        )

    async def invoke(self, candidate: Candidate, arguments: dict[str, Any]) -> Observation:
        """What the upstream gives back, as text. Raises as `LightRoutingAgent.execute`."""
        execution = Execution(candidate.id, arguments, self._thread)
        result = await self._agent.execute(execution, caller=self._caller)
        if isinstance(result, InputRequiredResult):
            asked = result.model_dump(by_alias=True, mode="json", exclude_none=True).get("inputRequests")
            return Observation(f"it needs input that only the user has; it asks: {json.dumps(asked)}", failed=True)
        return Observation(result_text(result), bool(result.is_error))
