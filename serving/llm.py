"""A chat model behind any OpenAI-compatible endpoint, asked for JSON of a given schema or given functions to call, and
a journal of its answers.

Knows the chat completions protocol and JSON schemas. Does not know what is asked, or what for. A finished question is
never asked twice: its answer stands in the journal under a digest of all that determines it, so work that was stopped
at any moment and is started again asks only what has no answer yet. A turn of a conversation is not recorded: what
its calls do is not repeatable.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

import jsonschema_rs
import openai

from prompts import Message
from serving.config import LLMConfig
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError, InvalidRequestError
from serving.validation import parse_json

logger = logging.getLogger(__name__)

# Statuses after which no other question would be answered either: no such key, right, model or capacity. The client
# has tried 429 and the 5xx again before they come here.
_HOPELESS = frozenset({401, 402, 403, 404, 429})
# An answer that was no JSON of the schema is shown to the model again up to here.
_SHOWN_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens. `cached_input` is for prompt tokens that the provider had cached."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls took. `prompt_tokens` includes `cached_tokens`. Answers without a count add none."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def cost(self, prices: Prices) -> float:
        """US dollars."""
        cached = prices.input if prices.cached_input is None else prices.cached_input
        fresh = self.prompt_tokens - self.cached_tokens
        return (fresh * prices.input + self.cached_tokens * cached + self.completion_tokens * prices.output) / 1e6


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that the model calls. `arguments` is what it wrote, which may be no JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A message of the model in a conversation: words, calls or both."""

    content: str
    calls: tuple[FunctionCall, ...] = ()
    usage: Usage = Usage()


class Journal:
    """Finished work as JSON lines, by key.

    A line is written in one piece and before its value is used, so the end of the process loses nothing; a line that
    a crash of the machine tore is passed over. Where a key stands twice the later line counts. Processes may share a
    file, but see each other's lines only when they open it.

    Args:
        path: the file, made where there is none; None keeps all in memory.

    Raises:
        ValueError: the file cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._values: dict[str, Any] = {}
        self._file = -1
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with path.open("rb") as lines:
                self._read(lines.readlines(), path)
        except OSError as error:
            raise ValueError(f"cannot use {path} as a journal: {error}") from error

    def _read(self, lines: Sequence[bytes], path: Path) -> None:
        for number, line in enumerate(lines, start=1):
            try:
                read = json.loads(line)
                self._values[read["key"]] = read["value"]
            except (ValueError, KeyError, TypeError):
                logger.warning("%s:%d is no whole line of a journal; what it recorded is done again", path, number)
        if lines and not lines[-1].endswith(b"\n"):
            os.write(self._file, b"\n")

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Any:
        """The value of `key`, not to be changed; None where there is none."""
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        """Record a JSON value."""
        if self._file >= 0:
            os.write(self._file, json.dumps({"key": key, "value": value}).encode() + b"\n")
        self._values[key] = value

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class LLM:
    """A chat model. `spent` is what this process asked for; `replayed` what the answers from the journal had taken.

    Args:
        model: its name at the endpoint.
        base_url: with its /v1.
        journal: where finished calls are recorded; by default in memory.
        concurrency: calls in progress at once.
        retries: of a request that was refused with 408, 409, 429 or 5xx, timed out or never arrived, each after a
            longer pause or the one that the endpoint asks for. A completion changes nothing at the endpoint, so it is
            safe to ask again.
        corrections: how often an answer that is no JSON of the schema is shown to the model, to be given again.
        timeout_s: the longest silence of the endpoint.
        max_tokens: the longest answer, thoughts included.
        constraint: how the endpoint is told to answer in JSON: `json_schema`, or `json_object` where it knows no
            schemas; the messages must then say which JSON is wanted. Either way the answer is checked here.
        extra: further fields of every request, such as `{"chat_template_kwargs": {"enable_thinking": False}}`.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        api_key: str = "unused",
        journal: Journal | None = None,
        concurrency: int = 8,
        retries: int = 5,
        corrections: int = 2,
        timeout_s: float = 120.0,
        max_tokens: int = 4096,
        constraint: Literal["json_schema", "json_object"] = "json_schema",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.journal = Journal() if journal is None else journal
        self.concurrency = concurrency
        self.spent = Usage()
        self.replayed = Usage()
        self._url = base_url
        self._corrections = corrections
        self._timeout_s = timeout_s
        self._max_tokens = max_tokens
        self._constraint = constraint
        self._extra = dict(extra or {})
        self._client = openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=retries, timeout=timeout_s)
        self._slots = asyncio.Semaphore(concurrency)
        # The same question asked twice at once is one call.
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(
        self,
        messages: Sequence[Message],
        schema: Mapping[str, Any],
        *,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Any:
        """The answer: a JSON value of `schema`, from the journal where this was answered before.

        Args:
            messages: the conversation; of each, role and content.
            schema: what the answer must be. Endpoints take different parts of JSON Schema: objects without further
                properties, all of them required, strings, integers and enumerations are understood by all.
            temperature: None for the endpoint's default.
            seed: tells apart the answers to a question that is asked several times.

        Raises:
            EngineError: the endpoint does not take this question, or no answer was JSON of the schema.
            EngineTimeoutError: no answer came in time.
            EngineUnavailableError: the endpoint cannot be reached, or refuses every question.
        """
        key = self._key(messages, schema, temperature, seed)
        async with self._asking.setdefault(key, asyncio.Lock()):
            known = self.journal.get(key)
            if known is None:
                async with self._slots:
                    known = await self._answer(messages, schema, temperature, seed)
                self.journal.put(key, known)
            else:
                self.replayed += Usage(**known["usage"])
            return known["answer"]

    @classmethod
    def of(cls, config: LLMConfig, journal: Path, *, retries: int = 5, max_tokens: int = 4096) -> LLM:
        """The profile's, its finished calls in a file.

        Raises:
            ValueError: the profile names none, or the file cannot be opened.
        """
        if not config.model:
            raise ValueError("the profile names no LLM: set llm.url and llm.model, or LIGHT_ROUTER_LLM__MODEL")
        return cls(
            config.model,
            config.url,
            api_key=config.api_key.get_secret_value() if config.api_key else "unused",
            journal=Journal(journal),
            concurrency=config.concurrency,
            retries=retries,
            timeout_s=config.timeout_s,
            max_tokens=max_tokens,
            constraint=config.constraint,
        )

    async def chat(self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """The model's next message in a conversation.

        Args:
            turns: the messages so far, as the protocol has them.
            tools: the functions that it may call, as the protocol has them.

        Raises:
            EngineError: the endpoint does not take this conversation, or does not answer in the protocol.
            EngineTimeoutError, EngineUnavailableError: as `ask`.
        """
        async with self._slots:
            completion = await self._complete(turns, {"tools": list(tools)} if tools else {})
        usage = _usage(completion)
        self.spent += usage
        try:
            message = completion.choices[0].message
            calls = tuple(
                FunctionCall(call.id or f"call_{number}", call.function.name, call.function.arguments or "")
                for number, call in enumerate(message.tool_calls or ())
            )
        except (AttributeError, IndexError, TypeError) as error:
            raise EngineError(f"{self.model} at {self._url} did not answer in the protocol: {error}") from error
        return Reply(_text(completion), calls, usage)

    async def close(self) -> None:
        """Close the connections and the journal."""
        await self._client.close()
        self.journal.close()

    def _key(
        self, messages: Sequence[Message], schema: Mapping[str, Any], temperature: float | None, seed: int | None
    ) -> str:
        said = [(message.role, message.content) for message in messages]
        parts = [self.model, said, schema, temperature, seed, self._extra]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    async def _answer(
        self, messages: Sequence[Message], schema: Mapping[str, Any], temperature: float | None, seed: int | None
    ) -> dict[str, Any]:
        """The value for the journal: the answer, and what it took with all corrections."""
        turns: list[dict[str, str]] = [{"role": message.role, "content": message.content} for message in messages]
        request: dict[str, Any] = {"response_format": self._response_format(schema)}
        request |= {name: value for name, value in (("temperature", temperature), ("seed", seed)) if value is not None}
        validator = jsonschema_rs.validator_for(dict(schema))
        usage = Usage()
        fault = ""
        for _ in range(1 + self._corrections):
            completion = await self._complete(turns, request)
            used = _usage(completion)
            usage += used
            self.spent += used
            text = _text(completion)
            try:
                answer = parse_json(text, "the answer")
                validator.validate(answer)
            except InvalidRequestError as error:
                fault = str(error)
            except jsonschema_rs.ValidationError as error:
                fault = f"the answer's {'.'.join(map(str, error.instance_path)) or 'value'}: {error.message}"
            else:
                return {"answer": answer, "usage": asdict(usage)}
            wrong = "That is not the JSON that was asked for. Answer again, with that JSON only. What was wrong: "
            turns = [
                *turns[: len(messages)],
                {"role": "assistant", "content": text[:_SHOWN_CHARACTERS]},
                {"role": "user", "content": wrong + fault[:_SHOWN_CHARACTERS]},
            ]
        raise EngineError(
            f"{self.model} at {self._url} gave no JSON of the schema in {1 + self._corrections} answers: {fault[:300]}"
        )

    def _response_format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if self._constraint == "json_object":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema), "strict": True}}

    async def _complete(self, turns: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> Any:
        asked: dict[str, Any] = {"messages": list(turns), "max_completion_tokens": self._max_tokens, **request}
        try:
            return await self._client.chat.completions.create(model=self.model, **asked, extra_body=self._extra)
        except openai.APITimeoutError as error:
            raise EngineTimeoutError(
                f"{self.model} at {self._url} was silent for {self._timeout_s:g} s; allow more time, or ask fewer "
                "questions at once"
            ) from error
        except openai.APIConnectionError as error:
            raise EngineUnavailableError(f"{self._url} cannot be reached: {error.__cause__ or error}") from error
        except openai.APIStatusError as error:
            kind: type[EngineError] = EngineError
            if error.status_code in _HOPELESS or error.status_code >= 500:
                kind = EngineUnavailableError
            raise kind(f"{self.model} at {self._url} answered {error.status_code}: {str(error)[:300]}") from error
        except openai.OpenAIError as error:
            raise EngineError(f"{self.model} at {self._url} did not answer in the protocol: {error}") from error


def _text(completion: Any) -> str:
    """What the model wrote; empty where it wrote nothing, or the endpoint sent something else."""
    try:
        return completion.choices[0].message.content or ""
    except (AttributeError, IndexError, TypeError):
        return ""


def _usage(completion: Any) -> Usage:
    """What one call took, as far as the endpoint says it."""
    said = getattr(completion, "usage", None)
    details = getattr(said, "prompt_tokens_details", None)
    counts = (
        getattr(said, "prompt_tokens", 0),
        getattr(details, "cached_tokens", 0),
        getattr(said, "completion_tokens", 0),
    )
    return Usage(1, *(count if isinstance(count, int) else 0 for count in counts))
