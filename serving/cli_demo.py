"""`light-router demo`: a guided tour. Every answer in it is made by the profile's router while one watches.

Knows some tools and conversations. Computes nothing: what it shows is `Router.route`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from prompts import Candidate, Message, ToolCall
from serving.assembly import build_router
from serving.cli import DEFAULT_PROFILE, ConfigOption, console, fail, load_config
from serving.router import Router
from serving.types import Decision, LightRouterError, RouteRequest

# Of each ranking so many are shown.
_SHOWN = 3
COVERAGE = 0.9

TOOLS = tuple(
    Candidate(f"{server}/{name}", name, description, server=server)
    for server, name, description in (
        ("weather", "get_forecast", "Weather forecast for a city and a day"),
        ("weather", "get_air_quality", "Air quality of a city now"),
        ("mail", "send_mail", "Send an e-mail to a person"),
        ("mail", "search_mail", "Search the mailbox for messages"),
        ("calendar", "create_event", "Create an event in the calendar"),
        ("calendar", "list_events", "List the events of a day"),
        ("calendar", "delete_event", "Delete an event from the calendar"),
        ("flights", "search_flights", "Search flights between two cities"),
        ("flights", "book_flight", "Book a flight that a search has found"),
        ("flights", "cancel_booking", "Cancel a booked flight"),
        ("hotels", "search_hotels", "Search hotels in a city"),
        ("hotels", "book_hotel", "Book a hotel room"),
        ("bank", "get_balance", "Balance of a bank account"),
        ("bank", "transfer_money", "Transfer money to another account"),
        ("notes", "create_note", "Write a note and keep it"),
        ("music", "play_song", "Play a song"),
    )
)


@dataclass(frozen=True)
class Scene:
    """A conversation, and what to look at."""

    title: str
    look: str
    messages: tuple[Message, ...]
    tools: Sequence[Candidate] = TOOLS


def _called(tool: str, arguments: str, result: str) -> tuple[Message, Message]:
    return Message("assistant", "", (ToolCall(tool, arguments),)), Message("tool", result, (), tool)


_FLIGHT = Message("user", "Get me on a flight from Lisbon to Rome on Friday")
_FOUND = _called("flights/search_flights", '{"from": "Lisbon", "to": "Rome"}', "TP836, 09:10, 120 EUR, seats left")

SCENES = (
    Scene(
        "A choice among sixteen tools",
        "The prefilter keeps ten, the model gives each of them and none of these a probability.",
        (Message("user", "What is the weather in Lisbon tomorrow?"),),
    ),
    Scene("A task of two steps", "Nothing has been called yet.", (_FLIGHT,)),
    Scene(
        "The same words, one step later",
        "The user's words are the same; what has happened since decides.",
        (_FLIGHT, *_FOUND),
    ),
    Scene(
        "Nothing fits",
        "A router that must choose would choose wrongly: none is an answer.",
        (Message("user", "Translate this poem into Latin"),),
        TOOLS[:4],
    ),
)


def demo(config: ConfigOption = DEFAULT_PROFILE) -> None:
    """Take a tour of what the router decides, and by what."""
    try:
        asyncio.run(_shown(build_router(load_config(config))))
    except (LightRouterError, ValueError) as error:
        fail(error)


async def _shown(router: Router) -> None:
    with console.status("loading the models"):
        await router.start()
    try:
        for number, scene in enumerate(SCENES, start=1):
            request = RouteRequest(scene.messages, tuple(scene.tools), coverage=COVERAGE)
            _show(number, scene, await router.route(request))
    finally:
        await router.close()
    console.print(
        "\n`light-router serve` answers the same over HTTP; `light-router agent` puts it before MCP servers.",
        style="dim",
    )


def _show(number: int, scene: Scene, decision: Decision) -> None:
    console.print(f"\n[bold]{number}. {scene.title}[/]")
    for message in scene.messages:
        said = message.content or " ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
        console.print(f"  [dim]{message.role:>9}[/]  {escape(said)}", highlight=False, soft_wrap=True)
    table = Table("", "candidate", "probability", box=None, padding=(0, 2, 0, 2), show_header=False)
    for ranked in decision.ranking[:_SHOWN]:
        chosen = decision.chosen is not None and ranked.candidate.id == decision.chosen.candidate.id
        table.add_row("->" if chosen else "", ranked.candidate.id, f"{ranked.probability:.2f}")
    table.add_row("->" if decision.chosen is None else "", "none of these", f"{decision.none_probability:.2f}")
    console.print(table)
    kept, considered = decision.prefilter.kept, decision.prefilter.considered
    exposed = ", ".join(decision.prediction_set or ()) or "none"
    console.print(
        f"  {scene.look}\n  {kept} of {considered} candidates read, {decision.prompt_tokens} tokens, "
        f"{decision.timings_ms['total']:.0f} ms. Exposed at {COVERAGE:.0%} coverage: {exposed}.",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
