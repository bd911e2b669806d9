"""The life of one streamed choice: stage → derender → commit, without I/O (RFC: Streaming Derender).

A chunk is staged, its derender call made by the shell, the outcome derived, written to the client, and only then
committed. A failure at any point leaves the committed snapshot as it was, so the identical call may be repeated and
a later attempt goes on from what the client has really seen.
"""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.render.derender_state import BEFORE_FIRST_CALL, DerenderState, extend_chunk_lens, whole_state
from motor.coordinator.render.models import DerenderedChoice, DerenderedChunk
from motor.coordinator.render.stop_strings import (
    NOT_ENDED,
    Held,
    StopRules,
    completed_stop,
    hold_back,
    num_new_characters,
)
from motor.coordinator.render.visible_members import visible_members


class IllegalTransition(RuntimeError):
    """A step that the stream's state does not allow; the state is unchanged."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything about a choice that a derender call changes.

    Attributes:
        state: Of Derender, for the next call.
        num_events: How many events the client has.
        held_field: Which text the held text belongs to: `content`, `reasoning`, `text`, or a tool call's index.
        held_text: Text that may be the beginning of a stop string.
        num_watched: How many more characters may complete a stop string that began before an engine took over.
        has_tools: Whether a tool call has been shown.
        has_content: Whether text after the reasoning has been shown, or a tool call.
        is_finished: Whether the finish reason has been shown.
    """

    state: DerenderState = BEFORE_FIRST_CALL
    num_events: int = 0
    held_field: str | int = ""
    held_text: str = ""
    num_watched: int = 0
    has_tools: bool = False
    has_content: bool = False
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """One OpenAI chunk choice for the client, before the envelope.

    Attributes:
        delta: For chat: the visible members, none of them null.
        text: For completions.
        token_ids: The engine's ids of this event, the terminating one included.
        logprobs: As derendered.
        finish_reason: Set on the last event.
        stop_reason: As the engine gave it; only meaningful with a finish reason.
    """

    token_ids: list[int]
    delta: dict[str, Any] | None = None
    text: str | None = None
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a derender answer means: what to write, and what is true once it is written."""

    event: ChoiceEvent | None
    snapshot: Snapshot
    token_ids: list[int]
    derendered_ids: list[int]


@dataclass(frozen=True, slots=True)
class _AttemptStart:
    """What a failed attempt that showed nothing goes back to."""

    snapshot: Snapshot
    num_ids: int
    chunk_lens: tuple[int, ...]


class PromptStream:
    """One choice of one prompt; mutable: `_committed`, `_ledger`, `_chunk_lens`, `_staged`, `_asked`, `_attempt_start`.

    Args:
        choice_index: The engine's index of the choice.
        stop: How it may end.
        marker_ids: Added tokens of the vocabulary, if known.
        keeps_empty: Whether chunks without visible text are shown too (logprobs or token ids were asked for).
        is_named_tool_choice: A named tool keeps the engine's finish reason.
        is_reasoning_hidden: `include_reasoning` is false; native vLLM then shows `reasoning` as null.
    """

    def __init__(
        self,
        choice_index: int,
        stop: StopRules,
        *,
        marker_ids: frozenset[int] | None = None,
        keeps_empty: bool = False,
        is_named_tool_choice: bool = False,
        is_reasoning_hidden: bool = False,
    ) -> None:
        self.choice_index = choice_index
        self._stop = stop
        self._marker_ids = marker_ids
        self._keeps_empty = keeps_empty
        self._is_named_tool_choice = is_named_tool_choice
        self._is_reasoning_hidden = is_reasoning_hidden
        self._committed = Snapshot()
        self._ledger: list[int] = []
        self._chunk_lens: list[int] = []
        self._staged: GenerateChoice | None = None
        self._asked: list[int] = []
        self._attempt_start = _AttemptStart(self._committed, 0, ())

    @property
    def committed(self) -> Snapshot:
        """The last state whose text the client has."""
        return self._committed

    @property
    def committed_ids(self) -> tuple[int, ...]:
        """The semantic ids whose text the client has, in order."""
        return tuple(self._ledger)

    @property
    def num_committed(self) -> int:
        """How many ids the client has seen as text."""
        return len(self._ledger)

    @property
    def is_finished(self) -> bool:
        """Whether the client has the finish reason."""
        return self._committed.is_finished

    def whole_state(self) -> bytes:
        """Return the committed `stream_state` as a sidecar needs it that keeps nothing of this choice alive."""
        return whole_state(self._committed.state, self._ledger, [abs(length) for length in self._chunk_lens])

    def begin_attempt(self) -> None:
        """Remember where this attempt starts; its engine doesn't know the text that went before."""
        if self._ledger:
            self._committed = replace(self._committed, num_watched=self._stop.num_watched_characters)
        self._attempt_start = _AttemptStart(self._committed, len(self._ledger), tuple(self._chunk_lens))

    def end_attempt(self) -> int:
        """After a failed attempt: go back to its start if it showed nothing, else stay at the last committed state.

        Returns:
            How many ids were taken back.
        """
        self._staged = None
        start = self._attempt_start
        if self._committed.num_events != start.snapshot.num_events:
            return 0
        num_taken_back = len(self._ledger) - start.num_ids
        self._committed = start.snapshot
        del self._ledger[start.num_ids :]
        self._chunk_lens = list(start.chunk_lens)
        return num_taken_back

    def abandon_staged(self) -> None:
        """Forget a staged chunk whose derender call failed; the committed state is untouched."""
        self._staged = None

    def stage(self, choice: GenerateChoice) -> GenerateChoice:
        """Take the next chunk; return what Derender must be asked.

        The id that ended the sequence must not reach Derender, which would show its text (`<|im_end|>`).

        Raises:
            IllegalTransition: A chunk is staged already, or the choice has finished.
        """
        if self._staged is not None:
            raise IllegalTransition("a chunk is staged already")
        if self._committed.is_finished:
            raise IllegalTransition("the choice has finished")
        self._staged = choice
        ids = choice.token_ids or []
        if ends_with_stop_id(choice) and not self._stop.includes_stop:
            ids = ids[:-1]
        self._asked = ids
        return for_derender(choice, ids)

    @property
    def is_watching(self) -> bool:
        """Whether the next text may complete a stop string that this attempt's engine can't see."""
        return self._committed.num_watched > 0

    def stop_across_cut(self, chunk: DerenderedChunk) -> str | None:
        """Return the stop string that the staged chunk completes where its engine may not see it, if there is one."""
        staged, before = self._staged, self._committed
        if staged is None or not self.is_watching or not chunk.choices or ends_with_stop_id(staged):
            return None
        if len(self._ledger) + len(staged.token_ids or ()) <= self._stop.min_tokens:
            return None
        return completed_stop(visible_members(chunk.choices[0]), Held(before.held_field, before.held_text), self._stop)

    def derive(self, chunk: DerenderedChunk, state: DerenderState, logprobs: dict[str, Any] | None = None) -> Outcome:
        """Return what the answer to the staged chunk's call means; changes nothing.

        Args:
            chunk: The answer.
            state: Of Derender, after the call.
            logprobs: The staged chunk's, resolved.

        Raises:
            IllegalTransition: Nothing is staged.
        """
        staged = self._staged
        if staged is None:
            raise IllegalTransition("no chunk is staged")
        shown = chunk.choices[0] if chunk.choices else DerenderedChoice(index=staged.index)
        before = self._committed
        ids = staged.token_ids or []
        fields, held = visible_members(shown), Held()
        num_watched = max(0, before.num_watched - num_new_characters(fields))
        if self._stop.strings:
            ending = staged.stop_reason if staged.finish_reason is not None else NOT_ENDED
            fields, held = hold_back(fields, Held(before.held_field, before.held_text), self._stop, ending)
        if self._is_reasoning_hidden and fields:
            fields = {**{key: fields[key] for key in ("content",) if key in fields}, "reasoning": None, **fields}
        has_tools = before.has_tools or "tool_calls" in fields
        is_empty = not fields and staged.finish_reason is None and logprobs is None and not self._keeps_empty
        snapshot = replace(
            before,
            state=state,
            num_events=before.num_events + (not is_empty),
            held_field=held.field,
            held_text=held.text,
            num_watched=num_watched,
            has_tools=has_tools,
            has_content=before.has_content or has_tools or bool(fields.get("content")),
            is_finished=staged.finish_reason is not None,
        )
        event = ChoiceEvent(
            token_ids=ids,
            delta=fields if shown.text is None else None,
            text=fields.get("text") if shown.text is not None else None,
            logprobs=logprobs,
            finish_reason=self._finish_reason(staged, has_tools),
            stop_reason=staged.stop_reason,
        )
        return Outcome(None if is_empty else event, snapshot, ids, self._asked)

    def commit(self, outcome: Outcome) -> None:
        """Make an outcome true: its event has been accepted for the client.

        Raises:
            IllegalTransition: Nothing is staged.
        """
        if self._staged is None:
            raise IllegalTransition("no chunk is staged")
        self._staged = None
        self._committed = outcome.snapshot
        self._ledger.extend(outcome.token_ids)
        extend_chunk_lens(self._chunk_lens, outcome.derendered_ids, self._marker_ids)

    def _finish_reason(self, staged: GenerateChoice, has_tools: bool) -> str | None:
        """`tool_calls` replaces `stop` and nothing else: `length` in the middle of arguments stays `length`."""
        if staged.finish_reason == "stop" and has_tools and not self._is_named_tool_choice:
            return "tool_calls"
        return staged.finish_reason


def ends_with_stop_id(choice: GenerateChoice) -> bool:
    """Whether the last id of a choice is the one that ended it, so that it isn't text.

    A stop string's ids stay: only their text can be cut.
    """
    return choice.finish_reason == "stop" and not isinstance(choice.stop_reason, str) and bool(choice.token_ids)


def ended_by(choice: GenerateChoice, stop: str) -> GenerateChoice:
    """Return the chunk as an engine ends it that finds a stop string."""
    return msgspec.structs.replace(choice, finish_reason="stop", stop_reason=stop)


def for_derender(choice: GenerateChoice, token_ids: list[int]) -> GenerateChoice:
    """Return the choice as Derender gets it: with these ids and without logprobs, which `render.logprobs` resolves."""
    return msgspec.structs.replace(choice, token_ids=token_ids, logprobs=None)
