"""How a routing question is worded: from messages and candidates to token ids.

Knows chat formats, token budgets, labels and the three readouts. Does not know engines, prefilters,
surfaces or files, and imports nothing else of this project. Training and serving both render here, so a
prompt that an adapter was trained on is the prompt that it is served.
"""

from prompts.budget import Budget, Truncation
from prompts.question import Candidate, Message, ToolCall
from prompts.template import NONE_NAME, Prompt, Readout, Template
from prompts.tokenizer import PromptTokenizer

__all__ = [
    "NONE_NAME",
    "Budget",
    "Candidate",
    "Message",
    "Prompt",
    "PromptTokenizer",
    "Readout",
    "Template",
    "ToolCall",
    "Truncation",
]
