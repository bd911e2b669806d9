"""One output, cut at different places; and what no cut can explain."""

from typing import Any

from motor.parity.chunk_shape import ChunkShape, chunk_shape, collapsed, differs_by_boundaries_only


def shapes(*choices: dict[str, Any]) -> list[ChunkShape]:
    return collapsed([chunk_shape({"id": "x", "choices": [choice]}, choice) for choice in choices])


def piece(*, prompt: list[int] | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": "t", "finish_reason": finish, "prompt_token_ids": prompt, "token_ids": [1]}


def test_the_first_chunk_may_be_the_last() -> None:
    cut = shapes(piece(prompt=[1]), piece(), piece(finish="stop"))
    assert differs_by_boundaries_only(shapes(piece(prompt=[1], finish="stop")), cut)
    assert differs_by_boundaries_only(shapes(piece(prompt=[1]), piece(finish="stop")), cut)


def test_prompt_ids_that_are_missing_or_late_are_no_matter_of_cuts() -> None:
    native = shapes(piece(prompt=[1]), piece(), piece(finish="stop"))
    assert not differs_by_boundaries_only(native, shapes(piece(), piece(finish="stop")))
    assert not differs_by_boundaries_only(native, shapes(piece(), piece(prompt=[1]), piece(finish="stop")))


def test_another_last_chunk_is_no_matter_of_cuts() -> None:
    native = shapes(piece(prompt=[1]), piece(finish="stop"))
    extra = {**piece(finish="stop"), "surplus": 1}
    assert not differs_by_boundaries_only(native, shapes(piece(prompt=[1]), extra))
