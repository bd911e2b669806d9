"""Which calls continue which: a digest of everything that parsing has read."""

import hashlib
import json
from array import array
from dataclasses import dataclass

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import DerenderStreamState

_DIGEST_SIZE = 32
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Identity of what stays the same over a stream: chat request and prompt.

    Attributes:
        digest: Over both.
        num_tokens: What keeping them costs, the text of the request taken at four bytes a token.
    """

    digest: bytes
    num_tokens: int

    def key(self, state: DerenderStreamState) -> bytes:
        """Key of a parser that has read this request and the history of `state`.

        The other fields of the state are left out: they never reach a parser, and each call brings its own.
        """
        key = hashlib.blake2b(self.digest, digest_size=_DIGEST_SIZE)
        key.update(_packed(state.output_token_ids))
        key.update(_packed(state.output_chunk_lens))
        return key.digest()


def identify_request(chat_request: ChatCompletionRequest, prompt_token_ids: list[int] | None) -> RequestIdentity | None:
    """Identity of a stream's request, or None if it holds something that can't be compared safely.

    Only fields that the client sent count: the others have fixed defaults, except the random `request_id`, which is new
    in every call and read by no parser.
    """
    try:
        # Not serialised by pydantic: a message may hold an iterator that can be read only once.
        messages = json.dumps(chat_request.messages)
        fields = chat_request.model_dump_json(exclude={"messages"}, exclude_unset=True)
    except (TypeError, ValueError):
        return None
    prompt = b"none" if prompt_token_ids is None else _packed(prompt_token_ids)
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for part in (messages.encode(), fields.encode(), prompt):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    num_tokens = len(prompt_token_ids or ()) + (len(messages) + len(fields)) // _BYTES_PER_TOKEN
    return RequestIdentity(digest.digest(), num_tokens)


def _packed(numbers: list[int]) -> bytes:
    try:
        packed = array("q", numbers).tobytes()
    except OverflowError:  # no vocabulary has such ids, but what a client sends must not fail here
        packed = repr(numbers).encode()
    return len(packed).to_bytes(8, "little") + packed
