"""What an engine generates: resumable at every point."""

from collections.abc import Iterable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motor.simulator import ArithmeticScript, ModelFolder, ScriptedAnswers
from motor.simulator.detokenizer import DetokenizerState, decode_next

# Output ids of vLLM 0.32 with the tiny model, temperature 0, for "Say hello." without thinking.
HELLO_PROMPT = [1016, 467, 198, 665, 788, 13, 1017, 198, 1016, 587, 198, 1022, 321, 1023, 321]
HELLO_OUTPUT = [513, 593, 546, 0, 605, 267, 76, 267, 611, 569, 783, 13, 1017]
FOX_PROMPT = [514, 609, 411, 759, 964, 621, 87]
FOX_OUTPUT = [716, 957, 82, 391, 457, 281, 383, 970, 567, 70, 13, 1015]


def take(ids: Iterable[int], count: int) -> list[int]:
    return list(islice(ids, count))


@given(prompt=st.lists(st.integers(0, 1023), min_size=1, max_size=40), num_done=st.integers(0, 30))
def test_arithmetic_output_goes_on_where_it_stopped(prompt: list[int], num_done: int) -> None:
    script = ArithmeticScript(range(256, 1000))
    whole = take(script.continuation(prompt), 60)
    assert take(script.continuation(prompt + whole[:num_done]), 60 - num_done) == whole[num_done:]


def test_arithmetic_output_depends_on_prompt_and_choice() -> None:
    script = ArithmeticScript(range(256, 1000))
    outputs = [take(script.continuation(prompt), 20) for prompt in ([5, 6], [5, 7], [5, 6, 7])]
    outputs.append(take(script.continuation([5, 6], choice=1), 20))
    assert len({tuple(output) for output in outputs}) == 4
    assert len(set(outputs[0])) > 10


@pytest.mark.parametrize(("prompt", "output"), [(HELLO_PROMPT, HELLO_OUTPUT), (FOX_PROMPT, FOX_OUTPUT)])
def test_the_tiny_models_answers_are_vllms(answers: ScriptedAnswers, prompt: list[int], output: list[int]) -> None:
    assert list(answers.continuation(prompt)) == output
    for num_done in range(len(output)):
        assert list(answers.continuation(prompt + output[:num_done])) == output[num_done:]


def test_the_longest_matching_suffix_wins() -> None:
    answers = ScriptedAnswers(ArithmeticScript([7]))
    answers.add([3], [100, 101])
    answers.add([1, 2, 3], [200, 201])
    answers.add(range(20), [400])
    assert list(answers.continuation([9, 2, 3])) == [100, 101]
    assert list(answers.continuation([9, 1, 2, 3])) == [200, 201]
    assert list(answers.continuation([9, 1, 2, 3, 200])) == [201]
    assert list(answers.continuation(list(range(20)))) == [400]


def test_other_prompts_and_complete_answers_go_to_the_other_script() -> None:
    answers = ScriptedAnswers(ArithmeticScript([7]))
    answers.add([1, 2, 3], [200, 201])
    assert take(answers.continuation([8]), 3) == [7, 7, 7]
    assert take(answers.continuation([1, 2, 3, 200, 201]), 2) == [7, 7]


def test_detokenization_never_shows_half_a_character(model: ModelFolder) -> None:
    text = "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 你好 done."
    state, parts = DetokenizerState(), []
    for token_id in model.encode(text):
        part, state = decode_next(model, state, [token_id], skip_special_tokens=True)
        parts.append(part)
    assert "".join(parts) == text
    assert "" in parts
    assert not any("\ufffd" in part for part in parts)


def test_detokenization_of_an_incomplete_character_shows_nothing(model: ModelFolder) -> None:
    emoji = model.encode("🎉")
    assert len(emoji) > 1
    text, state = decode_next(model, DetokenizerState(), emoji[:-1], skip_special_tokens=True)
    assert text == ""
    assert decode_next(model, state, emoji[-1:], skip_special_tokens=True)[0] == "🎉"
