"""What a method answered to each question, kept as JSON lines so that an interrupted evaluation continues.

Knows answers and one file. A line carries a key made of everything that can change the answer: question, method and
code. What does not match any more is asked again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import TypeAdapter, ValidationError

import prompts
import serving
from adapters.questions import Question

Kind = Literal["router", "chat", "retrieval", "rule"]
"""What sort of method answered; it decides which experiments make sense."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One decision.

    Attributes:
        key: see `answer_key`.
        ranking: ids, best first, at most RANKING_DEPTH.
        kept: how many of its first were read by a model; 0 for retrieval.
        probabilities: of those, in the ranking's order.
        none_probability: None where the method cannot say none.
        chosen: the id decided for; None for none.
        score: how sure the method is that something fits; higher is surer.
        prediction_set: ids of the set at COVERAGE; None where the method has none.
        set_has_none: whether that set also holds "none of these".
        prompt_tokens: tokens a model read.
        ms: milliseconds from question to answer.
    """

    key: str
    ranking: tuple[str, ...]
    kept: int = 0
    probabilities: tuple[float, ...] = ()
    none_probability: float | None = None
    chosen: str | None = None
    score: float = 0.0
    prediction_set: tuple[str, ...] | None = None
    set_has_none: bool = False
    prompt_tokens: int = 0
    ms: float = 0.0


RANKING_DEPTH = 50
# The coverage of the prediction sets that are asked for.
COVERAGE = 0.9

_LINE = TypeAdapter(Answer)


def code_digest() -> str:
    """Of the source that words, ranks and scores: an answer of other code is no answer of this one."""
    digest = hashlib.blake2b(digest_size=12)
    folder = Path(str(serving.__file__)).parent
    flow = [folder / f"{name}.py" for name in ("assembly", "posterior", "readout", "router")]
    for part in (Path(str(prompts.__file__)).parent, folder / "engine", folder / "prefilter"):
        flow += sorted(part.rglob("*.py"))
    for path in flow:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def answer_key(method_fingerprint: str, question: Question, code: str) -> str:
    """The same for the same question, method and code."""
    parts = "\0".join((method_fingerprint, question.digest, question.case.source, question.case.case_id, code))
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


class AnswerStore:
    """Answers by key, in memory and, where a path is given, appended to a file as they come."""

    def __init__(self, path: Path | None = None) -> None:
        self._answers: dict[str, Answer] = {}
        self._file: IO[bytes] | None = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        whole = text.rfind(b"\n") + 1  # what an interruption has cut is asked again
        for number, line in enumerate(text[:whole].splitlines(), start=1):
            try:
                answer = _LINE.validate_json(line)
            except ValidationError as error:
                raise ValueError(
                    f"{path}:{number} is no answer of an evaluation: {error.errors()[0]['msg']}; "
                    "delete the file to ask everything again"
                ) from error
            self._answers[answer.key] = answer
        self._file = path.open("ab")
        self._file.truncate(whole)

    def get(self, key: str) -> Answer | None:
        """What was answered, or None."""
        return self._answers.get(key)

    def add(self, answer: Answer) -> None:
        """Keep an answer."""
        self._answers[answer.key] = answer
        if self._file:
            self._file.write(_LINE.dump_json(answer, exclude_defaults=True) + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
