"""What a simulated engine generates: pure functions of all ids so far, so that a relay continues the same text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from motor.simulator.model_folder import ModelFolder

_KEY_LENGTH = 8
_CHOICE_STRIDE = 7919


class TokenScript(Protocol):
    """A model's behaviour.

    Law: `continuation(prompt + its first k ids)` yields what follows those k ids in `continuation(prompt)`.
    """

    def continuation(self, prompt: Sequence[int], choice: int = 0) -> Iterator[int]:
        """Yield the ids that follow a prompt, perhaps without end; the ids end with an EOS id if the answer ends."""
        ...


class ArithmeticScript:
    """Endless output: each id depends on the sum and the number of all ids before it.

    Args:
        ids: The ids that it may generate.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        if not ids:
            raise ValueError("a script needs ids to choose from")
        self._ids = tuple(ids)

    def continuation(self, prompt: Sequence[int], choice: int = 0) -> Iterator[int]:
        """Yield ids without end; choices beyond the first differ from it."""
        ids, size = self._ids, len(self._ids)
        total, count = sum(prompt) + choice * _CHOICE_STRIDE, len(prompt)
        while True:
            following = ids[(total * 31 + count * 17) % size]
            yield following
            total += following
            count += 1


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """Output that follows a prompt ending.

    Attributes:
        suffix: Ids that the prompt ends with, or the whole prompt.
        output: Ids that follow, an EOS id last if the answer ends.
    """

    suffix: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(slots=True)
class ScriptedAnswers:
    """Fixed answers to known prompts, found again when a part of the answer is already there.

    Changed by `add`. Prompts without an answer go to `otherwise`.

    Attributes:
        otherwise: The script for all other prompts.
    """

    otherwise: TokenScript
    _by_key: dict[tuple[int, ...], list[ScriptedAnswer]] = field(default_factory=dict)
    _key_lengths: list[int] = field(default_factory=list)
    _last_ids: set[int] = field(default_factory=set)
    _longest_output: int = 0

    @classmethod
    def from_expected(
        cls, path: str | Path, model: ModelFolder, otherwise: TokenScript | None = None
    ) -> "ScriptedAnswers":
        """Load the answers of a tiny model's `expected.json`, so that the simulator answers as the model does.

        Args:
            path: The file: `cases` of kind `chat` (`messages`, `tools`, `chat_template_kwargs`) or `completion`
                (`prompt`), each with its greedy output `raw`.
            model: The model that the file belongs to.
            otherwise: The script for other prompts; an endless one by default.
        """
        answers = cls(otherwise if otherwise is not None else ArithmeticScript(model.plain_ids))
        for case in json.loads(Path(path).read_text("utf-8"))["cases"]:
            if case["kind"] == "chat":
                answers.add_chat(
                    model, case["messages"], case["raw"], case.get("tools"), case.get("chat_template_kwargs")
                )
            else:
                answers.add_completion(model, case["prompt"], case["raw"])
        return answers

    def add(self, suffix: Iterable[int], output: Iterable[int]) -> None:
        """Let prompts that end with `suffix` be followed by `output`; the longest suffix wins.

        Raises:
            ValueError: Suffix or output is empty.
        """
        answer = ScriptedAnswer(tuple(suffix), tuple(output))
        if not answer.suffix or not answer.output:
            raise ValueError("a scripted answer needs a suffix and an output")
        key = answer.suffix[-_KEY_LENGTH:]
        candidates = self._by_key.setdefault(key, [])
        candidates.append(answer)
        candidates.sort(key=lambda candidate: -len(candidate.suffix))
        self._key_lengths = sorted({*self._key_lengths, len(key)}, reverse=True)
        self._last_ids.add(key[-1])
        self._longest_output = max(self._longest_output, len(answer.output))

    def add_chat(
        self,
        model: ModelFolder,
        messages: Sequence[Mapping[str, Any]],
        text: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer a conversation with a text (markers such as `<think>` in it become their ids) and the chat EOS."""
        prompt = model.encode(model.render_chat(messages, tools, template_variables))
        self.add(prompt, [*model.encode(text), *_ending(model.eos_token_id)])

    def add_completion(self, model: ModelFolder, prompt: str, text: str) -> None:
        """Continue a raw prompt with a text and the end-of-text id, if the model has one beside the chat EOS."""
        others = [token_id for token_id in model.eos_token_ids if token_id != model.eos_token_id]
        ending = _ending(others[0] if others else model.eos_token_id)
        self.add(model.encode(prompt), [*model.encode(text), *ending])

    def continuation(self, prompt: Sequence[int], choice: int = 0) -> Iterator[int]:
        """Yield the rest of the answer that the prompt is in, else what `otherwise` yields."""
        ids = tuple(prompt)
        found = self._find(ids)
        if found is None:
            yield from self.otherwise.continuation(prompt, choice)
        else:
            yield from found

    def _find(self, ids: tuple[int, ...]) -> tuple[int, ...] | None:
        for num_done in range(min(self._longest_output, len(ids))):
            end = len(ids) - num_done
            if ids[end - 1] not in self._last_ids:
                continue
            for key_length in self._key_lengths:
                for answer in self._by_key.get(ids[max(0, end - key_length) : end], ()):
                    start = end - len(answer.suffix)
                    if start >= 0 and ids[start:end] == answer.suffix and ids[end:] == answer.output[:num_done]:
                        return answer.output[num_done:]
        return None


def _ending(eos_token_id: int | None) -> list[int]:
    return [] if eos_token_id is None else [eos_token_id]
