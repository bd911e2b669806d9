"""Facts read from a model's folder."""

from pathlib import Path

import pytest

from motor.coordinator.render.vocabulary import Vocabulary, load_vocabulary
from tests.deployment import MODEL


def test_the_tiny_model() -> None:
    vocabulary = load_vocabulary(MODEL)
    assert vocabulary.size == 1024
    assert vocabulary.eos_token_id == 1017
    assert vocabulary.marker_ids is not None
    assert {1015, 1016, 1017, 1022, 1023} <= vocabulary.marker_ids


def test_without_a_folder_nothing_is_known() -> None:
    assert load_vocabulary(None) == Vocabulary()


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    assert load_vocabulary(tmp_path) == Vocabulary()


@pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens": 5}'])
def test_a_broken_tokenizer_leaves_the_size_known(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 7}}')
    (tmp_path / "tokenizer.json").write_text(content)
    assert load_vocabulary(tmp_path) == Vocabulary(size=7)
