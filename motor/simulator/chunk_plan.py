"""Which ids go into which event, and how each choice ends: pure, without time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from motor.simulator.detokenizer import DetokenizerState, decode_next
from motor.simulator.generate_request import SamplingParameters
from motor.simulator.model_folder import ModelFolder
from motor.simulator.scripts import TokenScript


@dataclass(frozen=True, slots=True)
class Chunk:
    """One choice's next ids.

    Attributes:
        index: The choice.
        ids: The new ids, the terminating one included.
        finish_reason: None while the choice goes on.
        stop_reason: The stop string, or the id of a stop token other than the tokenizer's EOS.
        num_generated: Ids of this choice so far, these included.
    """

    index: int
    ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    num_generated: int


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends a choice.

    Attributes:
        max_tokens: Ids at most.
        eos_token_id: The id that is reported as None; None where the engine has no tokenizer.
        stop_token_ids: All ids that end a choice, the EOS ids included unless they are to be ignored.
        model: Decodes ids for stop strings; None where none are asked for.
        sampling: The request's parameters.
    """

    max_tokens: int
    eos_token_id: int | None
    stop_token_ids: frozenset[int]
    model: ModelFolder | None
    sampling: SamplingParameters


@dataclass(slots=True)
class _Choice:
    """A choice as it grows; all fields but `index` and `prompt` change with `take`."""

    index: int
    prompt: Sequence[int]
    script: TokenScript
    rules: StopRules
    ids: Iterator[int] = field(init=False)
    generated: list[int] = field(default_factory=list)
    tail: str = ""
    detokenizer: DetokenizerState = field(default_factory=DetokenizerState)

    def __post_init__(self) -> None:
        self.ids = self.script.continuation(self.prompt, self.index)

    def take(self, size: int) -> Chunk:
        start = len(self.generated)
        finish_reason: str | None = None
        stop_reason: int | str | None = None
        while finish_reason is None and len(self.generated) - start < size:
            following = self._next()
            if following is None:
                finish_reason = "stop"
                break
            self.generated.append(following)
            finish_reason, stop_reason = self._ending(following)
        return Chunk(self.index, self.generated[start:], finish_reason, stop_reason, len(self.generated))

    def _next(self) -> int | None:
        following = next(self.ids, None)
        if following is None and self.rules.sampling.ignore_eos:
            self.ids = self.script.continuation([*self.prompt, *self.generated], self.index)
            following = next(self.ids, None)
        return following

    def _ending(self, last: int) -> tuple[str | None, int | str | None]:
        rules = self.rules
        if len(self.generated) >= rules.sampling.min_tokens:
            if last in rules.stop_token_ids:
                return "stop", None if last == rules.eos_token_id else last
            if rules.model is not None and (found := self._stop_string(rules.model, last)):
                return "stop", found
        return ("length", None) if len(self.generated) >= rules.max_tokens else (None, None)

    def _stop_string(self, model: ModelFolder, last: int) -> str | None:
        delta, self.detokenizer = decode_next(model, self.detokenizer, [last], skip_special_tokens=True)
        stops = self.rules.sampling.stop_strings
        text = self.tail + delta
        self.tail = text[-max(map(len, stops)) :]
        return next((stop for stop in stops if stop in text), None)


def plan_chunks(
    prompt: Sequence[int], script: TokenScript, rules: StopRules, tokens_per_chunk: Sequence[int]
) -> Iterator[Chunk]:
    """Yield the chunks of all choices in turn until each has ended.

    Args:
        prompt: The prompt's ids.
        script: What follows them.
        rules: What ends a choice.
        tokens_per_chunk: Sizes of the steps, taken in turn; the choices of one step have one size.
    """
    growing = [_Choice(index, prompt, script, rules) for index in range(rules.sampling.n)]
    for size in cycle(tokens_per_chunk):
        for choice in list(growing):
            chunk = choice.take(size)
            if chunk.finish_reason is not None:
                growing.remove(choice)
            yield chunk
        if not growing:
            return
