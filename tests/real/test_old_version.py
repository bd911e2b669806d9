"""The choice of the chain with a real vLLM of an older release, whose environment `ENGINE_VENV_OLD` names.

Not part of `make test`: a second engine environment costs 2.5 GB and minutes. The rules themselves have unit tests:
`tests/unit/render/test_chain_choice.py`, and with recorded shapes of vLLM 0.28 `tests/unit/engine/test_stop_reason.py`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motor.launch.engine_environment import find_engine_environment
from motor.launch.vllm_commands import vllm_environment
from motor.parity.corpus import BUILT_IN_CORPUS, load_corpus, select_cases
from motor.parity.sender import Sender
from motor.parity.suite import run_suite
from tests.deployment import CHAT, COMPLETIONS, user
from tests.real.coordinator import QUIET, ask, coordinator, native
from tests.real.processes import processes
from tests.real.stack import OPTIONS, RealStack

OLD = os.environ.get("ENGINE_VENV_OLD", "")
pytestmark = pytest.mark.skipif(not OLD, reason="ENGINE_VENV_OLD names no environment of an older vLLM")

PATTERNS = ("chat-messages/*", "completions/*", "bad-completions/*")


@pytest.fixture(scope="module")
def old_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStack]:
    """Sidecar and engines of the older release."""
    environment = find_engine_environment(Path(OLD))
    variables = vllm_environment(environment, OPTIONS, num_threads=1, own=os.environ)
    with processes(environment.python, variables, tmp_path_factory.mktemp("old-stack")) as children:
        yield RealStack(children, environment)


def text(prompt: str, **fields: Any) -> dict[str, Any]:
    """Return a greedy completions request."""
    return {"model": "tiny", "temperature": 0, "max_tokens": 40, "prompt": prompt, **fields}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body", "chain"),
    [
        pytest.param(COMPLETIONS, text("Emoji test:"), "token", id="completion"),
        pytest.param(COMPLETIONS, text("Emoji test:", max_tokens=3), "token", id="cut inside a character"),
        pytest.param(COMPLETIONS, text("The quick brown", stop=["lazy"]), "native", id="stop string"),
        pytest.param(CHAT, user("Say hello.", **QUIET, max_tokens=40), "native", id="chat"),
    ],
)
async def test_each_request_takes_the_chain_that_serves_it_rightly(
    old_stack: RealStack, path: str, body: dict[str, Any], chain: str, *, stream: bool
) -> None:
    async with coordinator(old_stack, ("union", old_stack.engine)) as d:
        answer = await d.post(path, {**body, "stream": stream})
        assert answer.headers["x-motor-chain"] == chain
        assert await ask(d, path, body, stream=stream) == await ask(native(d, old_stack), path, body, stream=stream)


@pytest.mark.timeout(300, func_only=True)
async def test_answers_are_native_vllms(old_stack: RealStack) -> None:
    corpus = load_corpus(BUILT_IN_CORPUS)
    chosen = {case.name: case for pattern in PATTERNS for case in select_cases(corpus, pattern)}
    # vLLM 0.28 doesn't repeat samples while other requests run, not even with a seed.
    cases = [case for case in chosen.values() if not (case.body or {}).get("temperature")]
    async with (
        coordinator(old_stack, ("union", old_stack.engine)) as d,
        Sender(d.url, 60.0) as ours,
        Sender(old_stack.engine, 60.0) as theirs,
    ):
        results = await run_suite(cases, ours, theirs, model="tiny", num_concurrent=4)
    assert {one.chain for one in results} >= {"token", "native"}
    assert not [(one.case, one.mode, one.chain, one.broken[:3]) for one in results if one.broken]
