"""The consistency test: the whole corpus through the Coordinator and to native vLLM, in both stream modes."""

import pytest

from motor.parity.corpus import BUILT_IN_CORPUS, load_corpus
from motor.parity.report import count_differences
from motor.parity.sender import Sender
from motor.parity.suite import run_suite
from tests.real.coordinator import coordinator
from tests.real.stack import RealStack

ANSWER_SECONDS = 120.0
NUM_CONCURRENT = 4


@pytest.mark.timeout(600, func_only=True)
async def test_nothing_differs_outside_the_documented_list(real_stack: RealStack) -> None:
    cases = load_corpus(BUILT_IN_CORPUS)
    async with (
        coordinator(real_stack, ("union", real_stack.engine)) as d,
        Sender(d.url, ANSWER_SECONDS) as ours,
        Sender(real_stack.engine, ANSWER_SECONDS) as native,
    ):
        results = await run_suite(cases, ours, native, model=real_stack.model_name, num_concurrent=NUM_CONCURRENT)
    differing = [(one.case, one.mode, one.broken[:3]) for one in results if one.broken]
    print(f"\nparity_cases={len(results)} parity_differences={count_differences(results)}")  # noqa: T201 - the figure
    assert not differing
    by_token = [one for one in results if one.chain == "token"]
    assert len(by_token) > len(results) / 2, "most of the corpus must have been answered by the token chain"
