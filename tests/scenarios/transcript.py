"""Readable transcripts: a command, `----`, what comes of it, a blank line; `#` begins a comment."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Command = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Block:
    """One command of a transcript.

    Attributes:
        line: Where it stands in the file, from 1.
        command: The command's name.
        arguments: Its arguments, each a JSON value.
        expected: What must come of it.
    """

    line: int
    command: str
    arguments: tuple[Any, ...]
    expected: str


def read_blocks(path: Path) -> Iterator[Block]:
    """Read a transcript.

    Raises:
        ValueError: A command without `----` after it.
    """
    lines = [line for line in enumerate(path.read_text("utf-8").splitlines(), 1) if not line[1].startswith("#")]
    position = 0
    while position < len(lines):
        number, text = lines[position]
        position += 1
        if not text:
            continue
        if position == len(lines) or lines[position][1] != "----":
            raise ValueError(f"{path.name}:{number}: no ---- after the command")
        position += 1
        expected = []
        while position < len(lines) and lines[position][1]:
            expected.append(lines[position][1])
            position += 1
        command, _, rest = text.partition(" ")
        yield Block(number, command, tuple(_values(rest)), "\n".join(expected))


def _values(text: str) -> Iterator[Any]:
    """Split JSON values that stand one after the other."""
    decoder = json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:]


def play(path: Path, core: object) -> None:
    """Give a transcript's commands to the methods of `core` and compare what they return.

    Raises:
        AssertionError: The first command of which something else comes.
    """
    for block in read_blocks(path):
        try:
            result = getattr(core, block.command)(*block.arguments)
        except RuntimeError as error:  # what cores raise for an illegal step
            result = f"{type(error).__name__}: {error}"
        assert result == block.expected, f"{path.name}:{block.line}: {block.command}"
