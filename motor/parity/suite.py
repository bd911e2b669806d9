"""Run a corpus against native and the Coordinator."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from motor.parity.cases import Case, Mode
from motor.parity.comparison import compare_answers, num_events
from motor.parity.report import CaseResult
from motor.parity.sender import Sender

_SALT_BYTES = 8


async def run_suite(
    cases: Sequence[Case],
    coordinator: Sender,
    native: Sender,
    *,
    model: str,
    num_concurrent: int,
    on_result: Callable[[CaseResult], None] = lambda result: None,
) -> list[CaseResult]:
    """Send every case in every one of its modes to both servers and compare the answers.

    Args:
        cases: What to send.
        coordinator: An open sender to the Coordinator.
        native: An open sender to native vLLM.
        model: The served model name.
        num_concurrent: How many cases × modes are in flight at once.
        on_result: Called with each result as it comes.

    Returns:
        One result per case and mode, in the order of `cases`.
    """
    slots = asyncio.Semaphore(num_concurrent)
    results: dict[tuple[str, Mode], CaseResult] = {}

    async def run_one(case: Case, mode: Mode) -> None:
        async with slots:
            result = await _run_case(case, mode, coordinator, native, model)
        results[case.name, mode] = result
        on_result(result)

    async with asyncio.TaskGroup() as group:
        for case in cases:
            if not case.is_alone:
                for mode in case.modes:
                    group.create_task(run_one(case, mode))
    for case in cases:
        if case.is_alone:
            for mode in case.modes:
                await run_one(case, mode)
    return [results[case.name, mode] for case in cases for mode in case.modes]


async def _run_case(case: Case, mode: Mode, coordinator: Sender, native: Sender, model: str) -> CaseResult:
    # Each side gets a salt of its own: the native server may be one of the engines behind the Coordinator, and the
    # second of the two requests would find its prompt in the prefix cache that the first one filled.
    native_request, our_request = (case.request(mode, model, secrets.token_hex(_SALT_BYTES)) for _ in range(2))
    native_answer = await native.send(native_request)
    our_answer = await coordinator.send(our_request)
    differences = compare_answers(native_answer, our_answer, is_cache_comparable=native_request.is_salted)
    return CaseResult(
        case=case.name,
        mode=mode,
        native_status=native_answer.status,
        our_status=our_answer.status,
        chain=our_answer.chain,
        num_native_events=num_events(native_answer),
        num_our_events=num_events(our_answer),
        differences=tuple(differences),
    )
