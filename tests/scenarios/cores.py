"""The pure cores as transcripts drive them: every command returns what it did as text."""

import json
from typing import Any

from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.choice_merge import ChoiceMerge, StreamOptions
from motor.coordinator.render.derender_state import DerenderState
from motor.coordinator.render.models import DerenderedChoice, DerenderedChunk
from motor.coordinator.render.prompt_stream import ChoiceEvent, Outcome, PromptStream
from motor.coordinator.render.stop_strings import StopRules


class PromptStreamCore:
    """Drives one `PromptStream`; mutable: the stream and the outcome that waits for its commit."""

    def __init__(self) -> None:
        self._stream = PromptStream(0, StopRules())
        self._outcome: Outcome | None = None

    def new(self, options: dict[str, Any]) -> str:
        """Begin a stream: `stop`, `includes_stop`, `markers`, `keeps_empty`, `named`, `hides_reasoning`."""
        self._stream = PromptStream(
            0,
            StopRules(tuple(options.get("stop", ())), options.get("includes_stop", False)),
            marker_ids=frozenset(options["markers"]) if "markers" in options else None,
            keeps_empty=options.get("keeps_empty", False),
            is_named_tool_choice=options.get("named", False),
            is_reasoning_hidden=options.get("hides_reasoning", False),
        )
        return "ok"

    def stage(self, ids: list[int], finish: str | None = None, stop: int | str | None = None) -> str:
        """Take an engine chunk; returns the ids that Derender is asked about."""
        asked = self._stream.stage(GenerateChoice(index=0, token_ids=ids, finish_reason=finish, stop_reason=stop))
        return f"derender {json.dumps(asked.token_ids)}"

    def answer(self, shown: str | dict[str, Any], state: dict[str, Any] | None = None) -> str:
        """Take Derender's answer, a text or a delta, and the state after it; returns the event."""
        choice = DerenderedChoice(text=shown) if isinstance(shown, str) else DerenderedChoice(delta=shown)
        carried = DerenderState(json.dumps(state or {}).encode(), is_parsed=bool(state and state.get("role_sent")))
        self._outcome = self._stream.derive(DerenderedChunk(choices=[choice]), carried)
        return _shown(self._outcome.event)

    def commit(self) -> str:
        """Accept the event for the client; returns the ledger."""
        if self._outcome is None:
            raise RuntimeError("nothing was answered")
        self._stream.commit(self._outcome)
        return self.ledger()

    def abandon(self) -> str:
        """Forget the staged chunk."""
        self._stream.abandon_staged()
        return self.ledger()

    def begin_attempt(self) -> str:
        """Begin an attempt."""
        self._stream.begin_attempt()
        return self.ledger()

    def end_attempt(self) -> str:
        """End a failed attempt."""
        return f"taken back {self._stream.end_attempt()}\n{self.ledger()}"

    def ledger(self) -> str:
        """Return what is committed."""
        snapshot = self._stream.committed
        held = f" held {snapshot.held_text!r}" if snapshot.held_text else ""
        finished = " finished" if snapshot.is_finished else ""
        return f"committed {list(self._stream.committed_ids)} in {snapshot.num_events} events{held}{finished}"

    def state(self) -> str:
        """Return the state that the next call would carry."""
        return self._stream.whole_state().decode()


def _shown(event: ChoiceEvent | None) -> str:
    if event is None:
        return "nothing to show"
    shown = json.dumps(event.text if event.text is not None else event.delta, ensure_ascii=False)
    return shown if event.finish_reason is None else f"{shown} finish {event.finish_reason} {event.stop_reason}"


class ChoiceMergeCore:
    """Drives one `ChoiceMerge`; mutable: the merge."""

    def __init__(self) -> None:
        self._merge: ChoiceMerge | None = None

    def new(self, api: str, fields: dict[str, Any], prompts: list[list[int]], num_choices: int) -> str:
        """Begin a merge for a request with these fields."""
        client = ClientRequest(request_id="r", peer_id="r", api=Api(api), body=b"", fields=fields)
        options = StreamOptions.of(client)
        self._merge = ChoiceMerge(client, prompts, num_choices, created=5, model="m", options=options)
        return "ok"

    @property
    def _begun(self) -> ChoiceMerge:
        if self._merge is None:
            raise RuntimeError("no merge has begun")
        return self._merge

    def opening(self) -> str:
        """Return what comes before the first event."""
        return _choices(self._begun.opening())

    def event(self, prompt: int, choice: int, shown: str | dict[str, Any], ids: list[int], finish: Any = None) -> str:
        """Merge one event."""
        text, delta = (shown, None) if isinstance(shown, str) else (None, shown)
        merged = ChoiceEvent(token_ids=ids, delta=delta, text=text, finish_reason=finish)
        return _choices(self._begun.event(prompt, choice, merged))

    def skip(self, prompt: int, choice: int, num_tokens: int) -> str:
        """Count tokens that show nothing."""
        self._begun.skip(prompt, choice, num_tokens)
        return "ok"

    def prompt_details(self, details: dict[str, Any]) -> str:
        """Take an engine's `prompt_tokens_details`."""
        self._begun.take_prompt_details(details)
        return "ok"

    def closing(self) -> str:
        """Return what comes after the last event."""
        return _choices(self._begun.closing())


def _choices(events: bytes) -> str:
    """Return events in short: the envelope, which is one for all, is left out."""
    lines = []
    for event in events.decode().split("\n\n")[:-1]:
        payload = event.removeprefix("data: ")
        if payload == "[DONE]":
            lines.append(payload)
            continue
        value = json.loads(payload)
        assert (value["model"], value["created"]) == ("m", 5)
        shown = {name: value[name] for name in ("choices", "usage", "prompt_token_ids") if value.get(name) is not None}
        lines.append(" ".join(f"{name} {json.dumps(item, ensure_ascii=False)}" for name, item in shown.items()))
    return "\n".join(lines) or "nothing"
