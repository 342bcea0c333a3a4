"""How one candidate is shown to the model: its name, its parameters, what it does, and what an agent has."""

from __future__ import annotations

from dataclasses import dataclass

from prompts.budget import Truncation, cut_end
from prompts.question import Candidate
from prompts.tokenizer import PromptTokenizer

# Characters of the parameter list and of an agent's tool list: enough for about ten names, and a bound on
# what a schema of thousands of properties can push the description out with.
LIST_CHARACTERS = 160


def _listed(names: list[str]) -> str:
    """Names joined by commas, ended by ", ..." where they pass LIST_CHARACTERS."""
    shown: list[str] = []
    length = 0
    for name in names:
        length += len(name) + 2
        if length > LIST_CHARACTERS:
            shown.append("...")
            break
        shown.append(name)
    return ", ".join(shown)


def describe(candidate: Candidate, name: str | None = None) -> str:
    """One line for the model and for the indexes: `name(parameters): description`.

    Optional parameters carry a question mark. Agents and skills say what they are and list their tools. The
    server stands in front where the name alone does not already begin with it.
    """
    shown = name or candidate.name
    if candidate.server and not name and not shown.startswith(candidate.server):
        shown = f"{candidate.server}.{shown}"
    if candidate.type != "tool":
        shown = f"{candidate.type} {shown}"
    parameters = _listed([name if required else f"{name}?" for name, required in candidate.parameters])
    line = f"{shown}({parameters})" if parameters else shown
    if candidate.description:
        line += f": {candidate.description}"
    if candidate.tools:
        line += f" Tools: {_listed(list(candidate.tools))}"
    return " ".join(line.split())  # one line: no candidate can begin a line of its own with another's label


@dataclass(frozen=True, slots=True)
class CandidateText:
    """Token ids of one candidate's line and, where it was cut, how."""

    ids: tuple[int, ...]
    truncation: Truncation | None


def render_candidate(
    tokenizer: PromptTokenizer, candidate: Candidate, limit: int, name: str | None = None
) -> CandidateText:
    """The candidate's line in at most `limit` tokens, its end left out where it is longer."""
    cut = cut_end(tokenizer, describe(candidate, name), limit)
    truncation = Truncation(f"candidates[{candidate.id!r}]", cut.original, len(cut.ids)) if cut.original else None
    return CandidateText(tuple(cut.ids), truncation)
