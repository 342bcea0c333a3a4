"""One typed tree of configuration: a YAML profile, overridden by `LIGHT_ROUTER_*` environment variables.

Nothing else in the project reads the environment. An unknown key is an error that names it.
Nested keys are set from the environment with two underscores: `LIGHT_ROUTER_ENGINE__URL=http://...`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from prompts import Budget
from prompts.template import Layout, Readout


def _one_line(secret: SecretStr) -> SecretStr:
    """The secret as a header can hold it: files of secrets often end in a line break, which belongs to no key."""
    text = secret.get_secret_value().strip()
    if not text or not text.isprintable():
        raise ValueError("a key must be one line of printable characters")
    return SecretStr(text)


Secret = Annotated[SecretStr, AfterValidator(_one_line)]
HostPattern = Annotated[str, Field(pattern=r"^(\*|(\*\.)?[^*/]+)$")]


class Section(BaseModel):
    """A branch of the tree: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """The language model and how it is asked.

    Readout, layout, chat format and budget belong to the adapter: where `adapter` names one with a manifest, the
    manifest's values are used and these are the bare model's.
    """

    name: str = "smollm2-135m-instruct"
    path: str = ".models/smollm2-135m-instruct"
    """Folder of the base model, or its name on a hub the engine can reach."""
    tokenizer: str | None = None
    """Folder with tokenizer.json; by default `path`."""
    adapter: str | None = None
    """Folder of the LoRA adapter, or None for the bare model."""
    chat: Literal["chatml", "qwen3"] = "chatml"
    readout: Readout = "pointwise"
    layout: Layout = "messages_first"
    budget: Budget = Budget()

    @property
    def served_name(self) -> str:
        """The name that answers carry, and vLLM knows: the adapter folder's where one is served, else `name`."""
        return Path(self.adapter).name if self.adapter else self.name


class EngineConfig(Section):
    """Where and how the model runs."""

    kind: Literal["local", "vllm"] = "local"
    timeout_s: float = Field(default=30.0, gt=0)
    """The longest one decision may wait for the engine."""
    threads: int | None = Field(default=None, ge=1)
    """Local: torch threads; by default one fewer than there are cores, and at least one."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    chunk_tokens: int = Field(default=1024, ge=16)
    """Local: tokens of one forward pass. Cancelled work stops at the next one."""
    prefix_cache_mb: int = Field(default=256, ge=0)
    """Local: memory for the keys and values of earlier prefixes."""
    url: str = "http://127.0.0.1:8001"
    """vLLM: where its server listens. It must not be reachable from outside: its own key guards only /v1."""
    api_key: Secret | None = None
    max_connections: int = Field(default=64, ge=1)
    start_timeout_s: float = Field(default=600.0, gt=0)
    """vLLM: how long to wait at start until its server has loaded the model."""
    breaker_failures: int = Field(default=5, ge=1)
    """vLLM: after so many failures in a row it is not asked for a while, and callers are told so at once."""
    breaker_open_s: float = Field(default=2.0, gt=0)
    """vLLM: how long; then one question tries it again."""
    fallback: Literal["prefilter"] | None = None
    """What answers while the engine is down: the prefilter's best, marked as `degraded`; null refuses with 503."""
    vllm_python: str | None = None
    """vLLM: the interpreter that has it, such as `.venv-vllm/bin/python`; by default the `vllm` command is run."""
    vllm: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """vLLM: further options of its command line, as `option-name: value`. They win over the project's own: true is
    a bare flag, false its `--no-` form, null leaves the option to vLLM's default."""


class GraphConfig(Section):
    """How the graph of servers, tools and intentions ranks (SING). The paper's weights are all 1."""

    semantic: float = Field(default=1.0, ge=0)
    """What similarity to its description, or to its tools', counts for a server."""
    pagerank: float = Field(default=1.0, ge=0)
    """What its PageRank counts for a server."""
    description: float = Field(default=1.0, ge=0)
    """What similarity to its description counts for a tool."""
    intention: float = Field(default=1.0, ge=0)
    """What similarity to the best of its intentions counts for a tool."""
    graph: float = Field(default=1.0, ge=0)
    """What its PageRank counts for a tool."""
    servers: int = Field(default=5, ge=1)
    """Servers whose tools are ranked."""
    tools: int = Field(default=10, ge=1)
    """Tools found for each sub-task."""
    damping: float = Field(default=0.85, gt=0, le=0.95)
    """Probability that a walk through the graph goes on."""


class PrefilterConfig(Section):
    """How a long candidate list is bounded before the model reads it."""

    method: Literal["fused", "bm25", "dense", "graph", "rerank"] = "fused"
    k: int = Field(default=10, ge=1)
    """Candidates that reach the model. Lists no longer than this skip the prefilter."""
    history_messages: int = Field(default=4, ge=0)
    """How many messages before query and observation the search text holds."""
    embedder: str = ".models/all-minilm-l6-v2"
    """A sentence-transformers folder; with `embedder_url` the model's name there."""
    embedder_url: str | None = None
    """An OpenAI-compatible or TEI endpoint with its /v1, in place of the embedder in process."""
    embedder_key: Secret | None = None
    reranker: str | None = None
    """A cross-encoder's folder for the method `rerank`; with `reranker_url` the model's name there."""
    reranker_url: str | None = None
    """An endpoint whose /rerank answers as vLLM's, Jina's and Cohere's do."""
    reranker_key: Secret | None = None
    rerank_depth: int = Field(default=30, ge=2)
    """How many of the fused ranking are put in the cross-encoder's order."""
    cache_mb: int = Field(default=64, ge=1)
    """Memory for embeddings of candidates, by content."""
    threads: int | None = Field(default=None, ge=1)
    """Torch threads of the embedder; by default one for each core."""

    @model_validator(mode="after")
    def _can_rerank(self) -> PrefilterConfig:
        if self.method == "rerank" and self.reranker is None:
            raise ValueError("prefilter.method is rerank, but prefilter.reranker names no cross-encoder")
        return self

    graph: GraphConfig = GraphConfig()


class CatalogConfig(Section):
    """Where catalogues are kept. Without a database requests bring their candidates themselves."""

    database: str | None = None
    """`sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST/DATABASE` where several replicas share it."""
    poll_s: float = Field(default=1.0, gt=0)
    """How often other replicas' changes are looked for."""
    on_finding: Literal["report", "quarantine"] = "report"
    """What becomes of a candidate in which poison is found: it is only reported, or also disabled until somebody
    enables it."""


class LLMConfig(Section):
    """A chat model behind an OpenAI-compatible endpoint, for work that is not routing: enrichment and data making."""

    url: str = "http://127.0.0.1:8001/v1"
    model: str = ""
    """Its name at the endpoint."""
    api_key: Secret | None = None
    concurrency: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)
    constraint: Literal["json_schema", "json_object"] = "json_schema"
    """How it is told to answer in JSON; `json_object` where the endpoint knows no schemas."""
    input_price: float = Field(default=0.0, ge=0)
    """US dollars for a million tokens read."""
    output_price: float = Field(default=0.0, ge=0)
    """US dollars for a million tokens written."""


class UpstreamConfig(Section):
    """Bounds of one server behind the agent, where they differ from all others'."""

    timeout_s: float | None = Field(default=None, gt=0)
    concurrency: int | None = Field(default=None, ge=1)


class AgentConfig(Section):
    """The Light Routing Agent: what it sits in front of, and its bounds."""

    sources: list[str] = Field(default_factory=list)
    """mcp.json files, server.json files, URLs of MCP servers or agent cards, folders of skills: as `catalog sync`
    takes them."""
    catalog: str = "agent"
    """The catalogue that they are read into, and that is routed over."""
    recorded_servers: bool = False
    """Whether servers that the catalogue knows from elsewhere are connected to as well. Whoever may write the
    catalogue may then start processes here and send this environment's variables anywhere."""
    types: list[Literal["tool", "agent", "skill"]] = Field(default_factory=list)
    """What may be routed to; empty means everything. `[agent]` for teaming."""
    pinned: list[str] = Field(default_factory=list)
    """Names of candidates that are listed as tools of their own beside `route` and `execute`."""
    alternatives: int = Field(default=3, ge=0)
    """Candidates that `route` names beside the decision where its caller does not say how many."""
    timeout_s: float = Field(default=60.0, gt=0)
    """The longest one call of an upstream may take, waiting for its turn included."""
    concurrency: int = Field(default=8, ge=1)
    """Calls of one upstream at a time; more wait."""
    upstreams: dict[str, UpstreamConfig] = Field(default_factory=dict)
    """By the server's name."""
    reconnect_s: float = Field(default=1.0, gt=0)
    """The shortest time before a lost connection is made again; it doubles while that fails."""
    interval_s: float = Field(default=300.0, gt=0)
    """How often each upstream's list is read again, even where it says nothing of a change."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """How long serving waits at start for the first lists; later ones join when they come."""
    thread_ttl_s: float = Field(default=86_400.0, gt=0)
    """A thread that nobody has used for so long is forgotten."""
    thread_characters: int = Field(default=24_000, ge=1_000)
    """Characters of a thread that are kept; the oldest steps go first."""
    result_characters: int = Field(default=2_000, ge=100)
    """Characters of one result, or of one call's arguments, that a thread keeps."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """HTTP: values of `Host` beside this machine's own, such as `router.example:*`."""
    allowed_origins: list[str] = Field(default_factory=list)
    """HTTP: values of `Origin` beside this machine's own, such as `https://app.example`."""


class GatewayConfig(Section):
    """Chat completions for other models than the router: cut to the tools that may be right, and sent on."""

    url: str | None = None
    """The upstream's OpenAI-compatible endpoint with its /v1; None where there is none."""
    api_key: Secret | None = None
    """The upstream's key. Without one, and where this server asks for none itself, the caller's own passes on."""
    coverage: float = Field(default=0.9, gt=0, lt=1)
    """A right tool is among those that go on with this probability."""
    least: int = Field(default=1, ge=1)
    """At least so many of the most probable tools go on."""
    timeout_s: float = Field(default=300.0, gt=0)
    """The longest silence of the upstream."""


class AuditConfig(Section):
    """The record of every decision: who asked, among what, what was chosen, or why nothing was."""

    path: str | None = None
    """A file that JSON lines are appended to, or `-` for the standard output; null keeps none."""
    texts: bool = False
    """Whether the query itself is recorded. By default only its length is: a hash of a short text can be guessed."""


class ServerConfig(Section):
    """The HTTP surface and its bounds."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_keys: list[Secret] = Field(default_factory=list)
    """Keys that callers may present as `Authorization: Bearer ...`, each for everything. Without these and without
    `keys_file` none is asked for."""
    keys_file: str | None = None
    """YAML or JSON with hashed keys, their scopes and tenants, as `light-router key create` prints them."""
    allowed_hosts: list[HostPattern] = Field(default_factory=list)
    """Values of `Host`, without port, such as `router.example` or `*.example`. Empty means any; but those of this
    machine only where no key is asked for and `host` is this machine's own."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Pages that may ask from a browser, as `Origin` names them: `https://app.example`. `*` for all."""
    audit: AuditConfig = AuditConfig()
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    max_candidates: int = Field(default=10_000, ge=1)
    max_messages: int = Field(default=2_000, ge=1)
    max_concurrent: int = Field(default=64, ge=1)
    """Decisions in progress or waiting for the engine; more are answered 429."""
    max_tokens: int = Field(default=262_144, ge=1)
    """Tokens of all those decisions' prompts, as estimated before they are read; more are answered 429."""
    max_concurrent_per_key: int | None = Field(default=None, ge=1)
    """Decisions of one key; null means as many as of all."""
    requests_per_minute_per_key: float | None = Field(default=None, gt=0)
    """Decisions that one key may begin in a minute, a minute's worth of them at once; null means any number."""
    drain_s: float = Field(default=0.0, ge=0)
    """How long after SIGTERM requests are still taken, while /health/ready already answers 503: until whoever
    balances load has noticed. 0 where something else waits for that, such as the chart's preStop."""
    log_format: Literal["text", "json"] = "text"
    """`json`: one object a line, with the request id and, where it is traced, the trace id."""
    canary_interval_s: float = Field(default=30.0, gt=0)
    """How often the background decision behind /health/ready is made."""


class Config(BaseSettings):
    """The whole tree. Build it with `load`."""

    model_config = SettingsConfigDict(
        env_prefix="LIGHT_ROUTER_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    prefilter: PrefilterConfig = PrefilterConfig()
    catalog: CatalogConfig = CatalogConfig()
    llm: LLMConfig = LLMConfig()
    gateway: GatewayConfig = GatewayConfig()
    server: ServerConfig = ServerConfig()
    agent: AgentConfig = AgentConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file (which arrives as init values)."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _labels_hold_k(self) -> Config:
        if self.model.readout == "listwise" and self.prefilter.k > 52:
            raise ValueError(f"prefilter.k is {self.prefilter.k}, but a listwise readout has 52 labels")
        return self

    @classmethod
    def load(cls, path: str | Path | None = None) -> Config:
        """Read a profile.

        Raises:
            ValueError: the file is missing, is no YAML mapping, or holds an unknown or invalid value; the message
                names the file and every offending key.
        """
        values: Any = {}
        if path is not None:
            try:
                values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
            except (OSError, yaml.YAMLError) as error:
                raise ValueError(f"cannot read the profile {path}: {error}") from error
            if not isinstance(values, dict):
                raise ValueError(f"the profile {path} must be a mapping of sections, not a {type(values).__name__}")
        try:
            return cls(**values)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'profile'}: {fault['msg']}" for fault in error.errors()
            )
            raise ValueError(f"the profile {path or '(defaults)'} is invalid: {faults}") from error
