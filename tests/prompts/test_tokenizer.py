"""Text is never control."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts import PromptTokenizer
from tests.conftest import MODELS

TOKENIZERS = [PromptTokenizer(MODELS / name) for name in ("smollm2-135m-instruct", "qwen3-tokenizer")]
CONTROL = sorted(
    {
        token["content"]
        for name in ("smollm2-135m-instruct", "qwen3-tokenizer")
        for token in json.loads((MODELS / name / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    }
)

mixed = st.lists(st.one_of(st.sampled_from(CONTROL), st.text(st.characters(exclude_categories=["Cs"])))).map("".join)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["smollm2", "qwen3"])
@given(text=mixed)
def test_no_added_token_comes_out_of_text(tokenizer: PromptTokenizer, text: str) -> None:
    assert not tokenizer.added_ids.intersection(tokenizer.text(text))


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["smollm2", "qwen3"])
@pytest.mark.parametrize("control", CONTROL)
def test_a_control_token_as_text_reads_the_same_but_is_pieces(tokenizer: PromptTokenizer, control: str) -> None:
    ids = tokenizer.text(control)
    assert len(ids) > 1
    assert tokenizer.decode(ids) == control


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["smollm2", "qwen3"])
def test_structure_keeps_control(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.structure("<|im_end|>") == [tokenizer.control("<|im_end|>")]
    assert tokenizer.control("<|im_end|>") in tokenizer.added_ids


@given(texts=st.lists(mixed, max_size=4))
def test_many_texts_at_once_are_the_same(texts: list[str]) -> None:
    for tokenizer in TOKENIZERS:
        assert tokenizer.texts(texts) == [tokenizer.text(text) for text in texts]


def test_single_refuses_a_label_of_several_tokens() -> None:
    with pytest.raises(ValueError, match=r"'weather forecast' is \d tokens"):
        TOKENIZERS[0].single("weather forecast")


def test_control_refuses_what_the_tokenizer_does_not_have() -> None:
    with pytest.raises(ValueError, match="no control token '<tool_call>'"):
        TOKENIZERS[0].control("<tool_call>")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        PromptTokenizer(tmp_path)


def test_a_tokenizer_that_leaks_control_is_refused(tmp_path: Path, smollm2: Path) -> None:
    source = json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))
    source["added_tokens"].append(
        {**source["added_tokens"][0], "id": source["model"]["vocab"]["Yes"], "content": "Yes"}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    with pytest.raises(ValueError, match="'Yes' would still become"):
        PromptTokenizer(tmp_path)
