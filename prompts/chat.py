"""How each model family marks turns, tool calls and answers: ChatML (SmolLM2) and Qwen3 with thinking off.

Only markup stands here, never text of a caller. Sources: the chat templates in the models' own
tokenizer_config.json. Turns follow them; tool calls and results keep the family's own markers where it has
them, so that the model recognises what it saw in pre-training.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Markup of one model family. Every field is encoded with the control tokens."""

    name: str
    turn_end: str
    """The control token that ends a turn; it must be one token of the tokenizer."""
    answer: str
    """Opens the turn in which the model answers; its next token is the decision."""
    call: tuple[str, str, str]
    """Around a tool call: before the name, between name and arguments, after the arguments."""
    result: tuple[str, str, str]
    """Around a tool result: before the tool's name, between name and content, after the content."""
    result_role: str
    """The role whose turn holds a tool result."""

    def turn(self, role: str) -> str:
        """Opens a turn of `role`."""
        return f"<|im_start|>{role}\n"

    @property
    def close(self) -> str:
        """Closes a turn."""
        return f"{self.turn_end}\n"


CHATML = ChatFormat(
    name="chatml",
    turn_end="<|im_end|>",
    answer="<|im_start|>assistant\n",
    call=("\n-> ", "(", ")"),
    result=("", ": ", ""),
    result_role="tool",
)

QWEN3 = ChatFormat(
    name="qwen3",
    turn_end="<|im_end|>",
    # The empty thought that Qwen3's own template writes for enable_thinking=False.
    answer="<|im_start|>assistant\n<think>\n\n</think>\n\n",
    call=('\n<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    result=("<tool_response>\n", ": ", "\n</tool_response>"),
    result_role="user",
)

CHAT_FORMATS = {chat.name: chat for chat in (CHATML, QWEN3)}
