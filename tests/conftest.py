"""Fixtures shared by every room: the shipped models' folders, and tiny ones with random weights.

The tiny models stand in for large ones behind the same loaders: real architectures, real tokenizers, random
weights. What they decide means nothing; how they are run is real.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODELS = ROOT / ".models"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return MODELS / "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Path:
    return MODELS / "qwen3-tokenizer"


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A Llama of two layers with random weights and SmolLM2's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smollm2 / name, folder)
    return folder
