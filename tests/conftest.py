"""Fixtures shared by every room: the shipped models' folders, and tiny ones with random weights.

The tiny models stand in for large ones behind the same loaders: real architectures, real tokenizers, random
weights. What they decide means nothing; how they are run is real.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clock import Clock

ROOT = Path(__file__).parent.parent
MODELS = ROOT / ".models"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


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


@pytest.fixture(scope="session")
def tiny_embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer with random weights, and all-MiniLM-L6-v2's tokenizer and pooling."""
    import torch
    from transformers import BertConfig, BertModel

    source = MODELS / "all-minilm-l6-v2"
    folder = tmp_path_factory.mktemp("tiny-embedder") / "model"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    BertModel(config).save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text(encoding="utf-8").replace("384", "32"), encoding="utf-8")
    return folder
