"""Puts a router together from a profile: tokenizer, template, engine, prefilter.

Knows every part and their order; nothing else does. Does not load weights: that is `Router.start`.
"""

from __future__ import annotations

from prompts import PromptTokenizer, Template
from serving.config import Config
from serving.engine.base import Engine
from serving.prefilter import Prefilter, make_prefilter
from serving.router import Router


def build_engine(config: Config) -> Engine:
    """The profile's engine, not started. torch is imported only where it runs in this process."""
    if config.engine.kind == "vllm":
        from serving.engine.vllm import VllmEngine  # noqa: PLC0415

        return VllmEngine(config)
    from serving.engine.local import LocalEngine  # noqa: PLC0415

    return LocalEngine(config)


def build_router(config: Config, prefilter: Prefilter | None = None) -> Router:
    """The profile's router, not started; with another prefilter than its own where one is given.

    Raises:
        ValueError: the tokenizer is missing or does not fit the template.
    """
    template = Template(
        PromptTokenizer(config.model.tokenizer or config.model.path),
        chat=config.model.chat,
        readout=config.model.readout,
        layout=config.model.layout,
        budget=config.model.budget,
    )
    return Router(
        template=template,
        engine=build_engine(config),
        prefilter=prefilter or make_prefilter(config.prefilter),
        base_model=config.model.name,
        adapter=config.model.served_name if config.model.adapter else None,
        timeout_s=config.engine.timeout_s,
    )
