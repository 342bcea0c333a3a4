"""Questions of a pipeline to an LLM: a question that got no answer is recorded too, so that a run can be repeated.

Knows the LLM client and its journal. Does not know what is asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from prompts.enrichment import Instruction
from serving.llm import LLM
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError


class Asker:
    """An LLM that says None where it has no answer of the schema, and says so again in every later run.

    Args:
        temperature: of every answer; None for the endpoint's default.
    """

    def __init__(self, llm: LLM, temperature: float | None = None) -> None:
        self.llm = llm
        self.failures: dict[str, str] = {}
        """What went wrong, by the digest of the question."""
        self._temperature = temperature

    async def __call__(self, question: Instruction, seed: int) -> Any:
        """The answer, or None.

        Raises:
            EngineUnavailableError: the LLM answers nobody.
            EngineTimeoutError: it was silent for too long, again and again.
        """
        key = self._key(question, seed)
        failed = self.llm.journal.get(key)
        if failed is None:
            try:
                return await self.llm.ask(
                    question.messages, question.schema, temperature=self._temperature, seed=seed % 2**31
                )
            except (EngineUnavailableError, EngineTimeoutError):
                raise  # another time it may be answered
            except EngineError as error:
                failed = {"failed": str(error)}
                self.llm.journal.put(key, failed)
        self.failures[key] = failed["failed"]
        return None

    async def all(self, questions: Sequence[Instruction], seeds: Sequence[int]) -> list[Any]:
        """The answers, in order. Raises as a single question does."""
        try:
            async with asyncio.TaskGroup() as group:
                asked = zip(questions, seeds, strict=True)
                tasks = [group.create_task(self(question, seed)) for question, seed in asked]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    def _key(self, question: Instruction, seed: int) -> str:
        said = [(message.role, message.content) for message in question.messages]
        parts = [self.llm.model, said, question.schema, self._temperature, seed]
        return "failed " + hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
