"""Puts a router together from a profile: tokenizer, template, engine, prefilter.

Knows every part and their order; nothing else does. Does not load weights: that is `Router.start`.
"""

from __future__ import annotations

from pathlib import Path

from prompts import PromptTokenizer, Template
from serving.canary import AdapterCheck
from serving.catalog.catalogs import Catalogs
from serving.catalog.store import Store
from serving.config import Config
from serving.engine.base import Engine
from serving.engine.breaker import Breaker, GuardedEngine
from serving.manifest import Manifest
from serving.prefilter import Prefilter, make_embeddings, make_rankers
from serving.prefilter.embedder import Embeddings
from serving.prefilter.selection import RankingPrefilter
from serving.router import Router


def build_engine(config: Config) -> Engine:
    """The profile's engine, not started. torch is imported only where it runs in this process."""
    if config.engine.kind == "vllm":
        from serving.engine.vllm import VllmEngine  # noqa: PLC0415

        settings = config.engine
        # A timeout of half the time that an engine is given at most is no impatient caller's.
        breaker = Breaker(settings.breaker_failures, settings.breaker_open_s, settings.timeout_s / 2)
        return GuardedEngine(VllmEngine(config), breaker)
    from serving.engine.local import LocalEngine  # noqa: PLC0415

    return LocalEngine(config)


def build_catalogs(config: Config, embeddings: Embeddings | None) -> Catalogs | None:
    """The profile's catalogues, not started; None where it names no database."""
    if config.catalog.database is None:
        return None
    embedder = Path(config.prefilter.embedder).name
    return Catalogs(Store(config.catalog.database), embeddings, embedder, config.catalog.poll_s)


def build_prefilter(config: Config) -> RankingPrefilter:
    """The profile's prefilter, not started."""
    embeddings = make_embeddings(config.prefilter)
    rankers = make_rankers(config.prefilter, embeddings)
    return RankingPrefilter(rankers, config.prefilter, build_catalogs(config, embeddings))


def with_manifest(config: Config) -> tuple[Config, Manifest | None]:
    """The profile as its adapter wants it: readout, layout, chat format and budget are the manifest's.

    An adapter that is not a folder on this machine (vLLM may run elsewhere) has no manifest here; then the profile's
    own values count.

    Raises:
        ValueError: the adapter's folder has no valid manifest, or the base model's weights are not those it names.
    """
    folder = config.model.adapter
    if folder is None or not Path(folder).is_dir():
        return config, None
    manifest = Manifest.load(folder)
    manifest.check_base_model(config.model.path)
    wording = manifest.template
    model = config.model.model_copy(
        update={
            "chat": wording.chat,
            "readout": wording.readout,
            "layout": wording.layout,
            "budget": wording.budget,
        }
    )
    return config.model_copy(update={"model": model}), manifest


def build_router(config: Config, prefilter: Prefilter | None = None) -> Router:
    """The profile's router, not started; with another prefilter than its own where one is given.

    Raises:
        ValueError: the tokenizer is missing or does not fit the template, or the adapter was made for another base
            model, tokenizer or wording.
    """
    config, manifest = with_manifest(config)
    model = config.model
    template = Template(
        PromptTokenizer(model.tokenizer or model.path),
        chat=model.chat,
        readout=model.readout,
        layout=model.layout,
        budget=model.budget,
    )
    check = None
    if manifest is not None:
        manifest.check_template(template)
        bare = config.model_copy(update={"model": model.model_copy(update={"adapter": None})})
        check = AdapterCheck(manifest, template, lambda: build_engine(bare))
    return Router(
        template=template,
        engine=build_engine(config),
        prefilter=prefilter or build_prefilter(config),
        base_model=model.name,
        adapter=model.served_name if model.adapter else None,
        check=check,
        calibration=manifest.calibration if manifest else None,
        timeout_s=config.engine.timeout_s,
        fallback=config.engine.fallback == "prefilter",
    )
