"""How an LLM is asked to make training data: new candidates out of known ones, tasks, and every role of a dialogue.

Knows candidates, conversations and the schemas of answers. Does not know who answers, or what is kept. Asked as in
`prompts.enrichment`: what is wanted stands in the system message, all that others wrote in one JSON document. What
every question of a dialogue shares stands first in its document, and what grows stands last, so that providers may
cache it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prompts.enrichment import (
    DESCRIPTION_CHARACTERS,
    PARAMETER_CHARACTERS,
    PARAMETERS,
    SHORT_CHARACTERS,
    Instruction,
    cut,
    fenced,
    instruction,
    numbered,
    shown,
    texts,
)
from prompts.question import Candidate, CandidateType, Message

Twist = Literal["failure", "empty"]

# Slots of a new candidate. Empty ones stay empty; more would be a form that nobody fills.
NEW_PARAMETERS = 6
NEW_RETURNS = 4
NEW_TOOLS = 6
# Steps of a plan: beyond these, tasks turn into lists of errands.
PLAN_STEPS = 6
# What is shown of one message or result of a dialogue.
MESSAGE_CHARACTERS = 1_500
# Choices of one argument.
CHOICES = 50
# Levels of objects and lists that arguments may have; what lies deeper is written as JSON text.
ARGUMENT_LEVELS = 3

_TYPES = ("string", "integer", "number", "boolean", "list of strings")
_YES_NO = {"type": "string", "enum": ["yes", "no"]}


@dataclass(frozen=True, slots=True)
class Operator:
    """A way to make a new candidate of a known one (ToolACE-MCP, section 3.3.2 and appendix A).

    Attributes:
        name: as the paper calls it, where it names it.
        change: what the new candidate is, told to the LLM.
        partner: whether a second candidate takes part.
    """

    name: str
    change: str
    partner: bool = False


TOOL_OPERATORS = (
    Operator(
        "function_enhancement",
        "does the same job as the given tool and one thing more that its users ask for next: finer control, a richer "
        "answer, or many items at once",
    ),
    Operator(
        "parameter_mutation",
        "reaches the given tool's goal from other inputs: a parameter is added, dropped, split, or replaced by another "
        "way to say the same, so that someone who holds different facts would call this one",
    ),
    Operator(
        "workflow_chaining",
        "is the next step of a workflow: it takes what the given tool returns (or what the partner returns, where "
        "there is one) and carries the work on",
        partner=True,
    ),
    Operator(
        "helper_operation",
        "is a small helper around the given tool: it checks, looks up, converts, previews, undoes or reports what "
        "someone needs just before or after calling it",
    ),
    Operator(
        "usage_extension",
        "carries the given tool's way of working over to a neighbouring situation, object or audience that the given "
        "tool does not serve",
    ),
)
AGENT_OPERATORS = (
    Operator("domain_shift", "has the given agent's skills in another field, with that field's own objects and words"),
    Operator("capability_extension", "has the given agent's role and one more capability, and so can be given more"),
    Operator("specialisation", "is an expert for one narrow part of what the given agent does, and refuses the rest"),
    Operator(
        "merging",
        "does the work of the given agent and of its partner, for people who want one contact instead of two",
        partner=True,
    ),
    Operator(
        "tool_set_change",
        "has the given agent's role, but reaches its goals with other tools, and so has other strengths and limits",
    ),
)  # fmt: skip


def operators(kind: CandidateType) -> tuple[Operator, ...]:
    """Those for a kind of candidate. A skill is changed like an agent: it has a profile, and no schema."""
    return TOOL_OPERATORS if kind == "tool" else AGENT_OPERATORS


def mutate(candidate: Candidate, operator: Operator, partner: Candidate | None, taken: Sequence[str]) -> Instruction:
    """A new candidate made of this one.

    Answers `name` and `description`; of a tool also `parameter_1`, ... and `returns_1`, ..., of an agent `tool_1`, ...

    Args:
        partner: the second candidate, where the operator has one.
        taken: names of others beside it, which the new one must not have.
    """
    kind = candidate.type
    system = (
        f"You design {kind}s for an assistant. The document describes one {kind}"
        f"{' and a partner' if operator.partner else ''}. Design a new {kind} which {operator.change}. It must be "
        "possible to build, and someone who reads both descriptions must be able to say for every request which of "
        "the two it needs. Its name is written in the style of the given names, and is none of them. Its description "
        "is one to three plain sentences in the language of the given one: what it does, on what, when it is the right "
        "choice. It does not mention the other candidates."
    )
    data: dict[str, Any] = {"candidate": shown(candidate)}
    if operator.partner and partner is not None:
        data["partner"] = shown(partner)
    data["names_that_are_taken"] = [cut(name, PARAMETER_CHARACTERS) for name in taken[:PARAMETERS]]
    properties: dict[str, Any] = texts(["name", "description"])
    if kind == "tool":
        system += (
            " Each parameter has a name, a type, whether it is required (yes or no) and a short description; a "
            "parameter of the given tool that stays keeps its name. `returns_1` and so on name the fields that it "
            "gives back. Leave the name of every slot that is not needed empty."
        )
        properties |= dict.fromkeys(numbered("parameter", NEW_PARAMETERS), _parameter())
        properties |= texts(numbered("returns", NEW_RETURNS))
    else:
        system += f" `tool_1` and so on name the tools that the new {kind} works with; leave the rest empty."
        properties |= texts(numbered("tool", NEW_TOOLS))
    return instruction(system, data, properties, list(properties))


def _parameter() -> dict[str, Any]:
    properties = {
        **texts(["name"]),
        "type": {"type": "string", "enum": list(_TYPES)},
        "required": _YES_NO,
        **texts(["description"]),
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def write_task(subset: Sequence[Candidate]) -> Instruction:
    """A task that needs several of these. Answers `task`, `plan` and `step_1` to `step_N`, numbers from 1, then 0."""
    names = numbered("step", PLAN_STEPS)
    system = (
        "The document holds a numbered list of tools or agents. Invent one realistic task of one person that takes "
        f"two to {PLAN_STEPS} calls of them, where later calls use what earlier ones gave. Not all of the list has to "
        "be used, and one may be called again. `task` tells, in two to four sentences, the person's situation, what "
        "they want in the end, and all concrete facts (names, dates, amounts, identifiers) that they know; it names no "
        "tool and no agent. `plan` is the coarse course in one or two sentences. The steps are the numbers in the "
        "order of use, then 0."
    )
    steps = {"type": "integer", "enum": list(range(len(subset) + 1))}
    properties = {**texts(["task", "plan"]), **dict.fromkeys(names, steps)}
    return instruction(system, {"list": _listed(subset)}, properties, list(properties))


def check_plan(subset: Sequence[Candidate], task: str, plan: str, steps: Sequence[int]) -> Instruction:
    """Whether the plan can be carried out. Answers `answerable`, yes or no."""
    system = (
        "The document holds a numbered list of tools or agents, a person's task, and a plan with the numbers of its "
        "steps. Answer `yes` if the task makes sense and these steps in this order, given what the person says, lead "
        "to what is wanted; `no` if a step has no use, lacks an input that nobody has, comes too early, or if "
        "something the task needs is missing from the list."
    )
    data = {**_scene(subset, task, plan), "steps": list(steps)}
    return instruction(system, data, {"answerable": _YES_NO}, ["answerable"])


def open_dialogue(task: str) -> Instruction:
    """The user's first message, by someone who knows nothing of tools. Answers `message`."""
    system = (
        "You play the person in the document, who writes to an assistant. Write their first message as such a person "
        "would type it: in the first person, with their own goal, and not necessarily with every fact at once. It is "
        "not a copy of the document's sentences. The person does not know what tools or agents the assistant has."
    )
    return instruction(system, {"task": _text(task)}, texts(["message"]), ["message"])


def answer_assistant(task: str, messages: Sequence[Message], changes_mind: bool) -> Instruction:
    """The user's next message. Answers `message`, and `finished`: yes where they have what they wanted."""
    system = (
        "You play the person in the document, who talks with an assistant. Write their next message: answer what the "
        "assistant asks out of the task's facts (invent a fitting fact where there is none), or say what is still "
        "missing. `finished` is yes if the person now has what they wanted or sees that they cannot get it; then the "
        "message is empty. The person does not know what tools or agents the assistant has."
    )
    if changes_mind:
        system += (
            " Just now the person changes their mind: they want something in the task different from what they said "
            "before (another value, another object, or a part more or less), say so, and are not finished."
        )
    # Without calls and results: what the assistant has is not the user's to know.
    spoken = [Message(one.role, one.content) for one in messages if one.role in {"user", "assistant"} and one.content]
    data = {"task": _text(task), "conversation": [_said(message, {}) for message in spoken]}
    return instruction(system, data, {**texts(["message"]), "finished": _YES_NO}, ["message", "finished"])


def act(subset: Sequence[Candidate], task: str, plan: str, messages: Sequence[Message]) -> Instruction:
    """The assistant's next step. Answers `message`, and `choice`: the number to call, or 0 to speak to the user."""
    system = (
        "You play the assistant of the conversation in the document. It has the numbered list of tools or agents and "
        "nothing else. A coarse plan is given, as a thought of its own: follow it as far as what happened allows, and "
        "leave it where a call failed, gave nothing, or the user wants something else. Decide the next step. `choice` "
        "is the number of the one to call now, or 0 to answer the user or ask for what only the user knows. `message` "
        "is what the assistant says to the user: with 0 it is the whole answer or question, otherwise it is a few "
        "words about what comes now, or empty. It claims nothing that no result has shown, and names no tool."
    )
    choice = {"type": "integer", "enum": list(range(len(subset) + 1))}
    data = {**_scene(subset, task, plan), "conversation": _conversation(subset, messages)}
    # Spoken before it is chosen: a model that says first what it is about to do chooses better.
    return instruction(system, data, {**texts(["message"]), "choice": choice}, ["message", "choice"])


def fill_arguments(candidate: Candidate, messages: Sequence[Message], by_id: Mapping[str, Candidate]) -> Instruction:
    """The arguments of a call that has been decided on; the schema is `arguments_schema`'s."""
    schema = arguments_schema(candidate)
    system = (
        "The document holds a conversation and the tool or agent that the assistant calls now. Write the arguments of "
        "this call, out of what the user said and the results so far; an agent is told everything it needs to know. An "
        "optional argument that nothing speaks for is an empty text, an empty list, 0 or false."
    )
    conversation = [_said(message, {id_: one.name for id_, one in by_id.items()}) for message in messages]
    # The schema is data too: its author chose the names in it.
    data = {"conversation": conversation, "called": shown(candidate), "arguments": schema}
    return fenced(system, data, "Answer with one JSON object of the JSON schema in `arguments`.", schema)


def arguments_schema(candidate: Candidate) -> dict[str, Any]:
    """A candidate's input schema as every provider's constrained decoding takes it: no more than types and choices."""
    schema = candidate.input_schema
    if not candidate.parameters and candidate.type != "tool":
        schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    return _simple({**schema, "type": "object"}, ARGUMENT_LEVELS)


def _simple(schema: Any, levels: int) -> dict[str, Any]:
    known = schema if isinstance(schema, Mapping) else {}
    kind = known.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), None)
    values = known.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return {"type": "string", "enum": values[:CHOICES]}
    properties = known.get("properties")
    if kind == "object" and levels and isinstance(properties, Mapping):
        stated = known.get("required")
        required = set(map(str, stated)) if isinstance(stated, list) else set()
        # Required ones first, and no more than are shown.
        names = sorted(properties, key=lambda name: name not in required)[:PARAMETERS]
        shapes = {name: _simple(properties[name], levels - 1) for name in names}
        return {"type": "object", "properties": shapes, "required": names, "additionalProperties": False}
    if kind == "object" and levels == ARGUMENT_LEVELS:
        return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    if kind == "array" and levels:
        return {"type": "array", "items": _simple(known.get("items"), levels - 1)}
    return {"type": kind if kind in {"string", "integer", "number", "boolean"} else "string"}


def play_environment(
    candidate: Candidate, arguments: str, messages: Sequence[Message], twist: Twist | None
) -> Instruction:
    """What a call gives back, though nothing is executed. Answers `result`."""
    wanted = {
        None: "Write what this call gives back: plausible, concrete data, consistent with earlier results, in the "
        "format such a tool or agent answers in (mostly compact JSON; an agent reports in sentences).",
        "failure": "This call fails. Write the error that it gives back, as such a tool or agent words it: short, "
        "technical, and telling why (a time-out, a missing right, a wrong or unknown value, a broken service).",
        "empty": "This call succeeds but finds nothing. Write what it gives back then: an empty list, a count of 0, or "
        "a sentence that there is nothing.",
    }[twist]
    system = f"You play the environment in which a tool or agent is called. {wanted} At most 120 words."
    earlier = [_said(message, {}) for message in messages if message.role == "tool"]
    data = {"earlier_results": earlier, "called": shown(candidate), "arguments": _text(arguments)}
    return instruction(system, data, texts(["result"]), ["result"])


def judge(subset: Sequence[Candidate], task: str, plan: str, messages: Sequence[Message]) -> Instruction:
    """How good a finished dialogue is. Answers `score`, 1 to 5."""
    system = (
        "The document holds a numbered list of tools or agents, a task, a plan, and a conversation in which an "
        "assistant used them. Grade it as an example of choosing well. 5: every call is the best choice of the list "
        "at its moment, has arguments that follow from the conversation, and the user is served as far as the results "
        "allow. 4: the same with a small flaw. 3: one needless or doubtful call. 2: a wrong call, invented arguments, "
        "or claims that no result shows. 1: incoherent. A call that fails is no flaw; what counts is how the assistant "
        "goes on."
    )
    data = {**_scene(subset, task, plan), "conversation": _conversation(subset, messages)}
    return instruction(system, data, {"score": {"type": "integer", "enum": [1, 2, 3, 4, 5]}}, ["score"])


def _listed(subset: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [{"number": number, **shown(candidate)} for number, candidate in enumerate(subset, start=1)]


def _scene(subset: Sequence[Candidate], task: str, plan: str) -> dict[str, Any]:
    return {"list": _listed(subset), "task": _text(task), "plan": cut(plan, SHORT_CHARACTERS)}


def _conversation(subset: Sequence[Candidate], messages: Sequence[Message]) -> list[dict[str, Any]]:
    numbers = {candidate.id: str(number) for number, candidate in enumerate(subset, start=1)}
    return [_said(message, numbers) for message in messages]


def _said(message: Message, shown_as: Mapping[str, str]) -> dict[str, Any]:
    """A message as data. `shown_as` says how the candidates of calls and results are named; otherwise by id."""
    said: dict[str, Any] = {"role": "result" if message.role == "tool" else message.role}
    if message.name:
        said["of"] = shown_as.get(message.name, message.name)
    if message.content:
        said["says"] = cut(message.content, MESSAGE_CHARACTERS)
    if message.tool_calls:
        said["calls"] = [
            {"called": shown_as.get(call.name, call.name), "arguments": cut(call.arguments, MESSAGE_CHARACTERS)}
            for call in message.tool_calls
        ]
    return said


def _text(text: str) -> str:
    return cut(text, DESCRIPTION_CHARACTERS)
