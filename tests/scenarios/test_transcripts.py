"""Plays every transcript; a folder is named after the core that it drives."""

from pathlib import Path

import pytest

from tests.scenarios.cores import ChoiceMergeCore, PromptStreamCore
from tests.scenarios.transcript import play, read_blocks

CORES = {"prompt_stream": PromptStreamCore, "choice_merge": ChoiceMergeCore}
HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*/*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_transcript(path: Path) -> None:
    assert list(read_blocks(path))
    play(path, CORES[path.parent.name]())


def test_every_core_has_transcripts() -> None:
    assert {path.parent.name for path in TRANSCRIPTS} == CORES.keys()


def test_a_wrong_transcript_fails(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("stage [7]\n----\nderender [8]\n")
    with pytest.raises(AssertionError, match=r"wrong.txt:1: stage"):
        play(wrong, PromptStreamCore())
