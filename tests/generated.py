"""Requests that no one would write and someone will send: any Unicode, any length, any name.

Made from a seed, so that a failure names the request that caused it.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.conftest import MODELS

CONTROL = sorted(
    {
        token["content"]
        for name in ("smollm2-135m-instruct", "qwen3-tokenizer")
        for token in json.loads((MODELS / name / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    }
)
ODD = ["\n", "\0", "\r\n", "\u202e", "\u200b", "\ufeff", "\u2028", "\ud7ff", "\U0010ffff", "e\u0301", "\x1b[31m"]
WORDS = "weather hotel flight погода 天気 북 مرحبا naïve send_email getUserById a.b.c Ünïcödé 😀 x"


class Requests:
    """A stream of /v1/route bodies.

    Args:
        seed: the same seed makes the same requests.
        pool: how many different candidates there are; a server embeds each once.
    """

    def __init__(self, seed: int, pool: int) -> None:
        self._random = random.Random(seed)
        self._pool = [self._candidate(number) for number in range(pool)]

    def text(self, length: int) -> str:
        """Up to about `length` characters of anything."""
        choose = self._random
        pieces: list[str] = []
        made = 0
        while made < length:
            kind = choose.random()
            if kind < 0.5:
                pieces.append(choose.choice(WORDS.split()) + " ")
            elif kind < 0.65:
                pieces.append(choose.choice(CONTROL))
            elif kind < 0.75:
                pieces.append(choose.choice(ODD))
            elif kind < 0.8:
                pieces.append(choose.choice("a 0-\t漢") * choose.randrange(1, 200))
            else:
                code = choose.choice([choose.randrange(0x20, 0x250), choose.randrange(0x250, 0xD800)])
                pieces.append(chr(code))
            made += len(pieces[-1])
        return "".join(pieces)[: max(length, 0)]

    def _schema(self) -> Any:
        choose = self._random
        kind = choose.random()
        if kind < 0.3:
            return {}
        if kind < 0.4:
            deep: Any = {"type": "string"}
            for _ in range(choose.randrange(1, 80)):
                deep = {"type": "object", "properties": {self.text(5): deep}}
            return deep
        if kind < 0.5:
            return {"properties": choose.choice([None, [], "x", 3]), "required": choose.choice(["x", [1], None])}
        names = [self.text(choose.randrange(12)) for _ in range(choose.randrange(6))]
        return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names[:1]}

    def _candidate(self, number: int) -> dict[str, Any]:
        choose = self._random
        name = choose.choice([f"tool_{number}", f"Tool_{number // 2}", self.text(20) or "x", "n" * 300, "search"])
        candidate: dict[str, Any] = {
            "id": f"{number}/{name}",
            "name": name,
            "description": self.text(choose.choice([0, 0, 30, 200])),
        }
        if choose.random() < 0.5:
            candidate["input_schema"] = self._schema()
        if choose.random() < 0.2:
            candidate |= {
                "type": choose.choice(["tool", "agent", "skill"]),
                "server": self.text(8),
                "tools": [self.text(6)],
            }
        return candidate

    def _message(self, length: int) -> dict[str, Any]:
        choose = self._random
        role = choose.choice(["system", "user", "assistant", "tool", "developer"])
        message: dict[str, Any] = {"role": role, "content": self.text(length)}
        if role == "assistant" and choose.random() < 0.6:
            calls = [{"name": self.text(10) or "x", "arguments": self.text(30)} for _ in range(choose.randrange(1, 12))]
            message["tool_calls"] = calls
        if role == "tool":
            message["name"] = self.text(10) or "x"
        return message

    def body(self) -> dict[str, Any]:
        """The next request."""
        choose = self._random
        most = choose.choices([3, 12, 60, len(self._pool)], [50, 40, 9, 1])[0]
        candidates = choose.sample(self._pool, choose.randrange(min(most, len(self._pool)) + 1))
        if choose.random() < 0.03 and candidates:
            candidates.append(candidates[0])  # a duplicate id: refused, by name
        body: dict[str, Any] = {"candidates": candidates}
        length = choose.choices([0, 20, 200, 2_000, 100_000], [5, 50, 35, 9, 1])[0]
        if choose.random() < 0.5:
            body["query"] = self.text(length)
            if choose.random() < 0.5:
                body["history"] = [self._message(100) for _ in range(choose.randrange(12))]
        else:
            body["messages"] = [self._message(length) for _ in range(choose.randrange(6))]
        for key, value in (
            ("k", choose.choice([1, 3, 10, 50, 0, -1, 10**9])),
            ("top", choose.choice([0, 1, 5])),
            ("allow_none", choose.random() < 0.5),
            ("coverage", choose.choice([0.5, 0.9, 0.0, 1.5])),
        ):
            if choose.random() < 0.15:
                body[key] = value
        return body
