"""What of a text is sent when."""

from __future__ import annotations

from typing import Any

from tests.support.llm import LETTERS, VOCABULARY, Letters
from tritrio.actors._llm_output import LlmOutput
from tritrio.backends.llm.steps import TokenChoice, TokenEvent
from tritrio.protocol.sampling_params import FinishReason, SamplingParams

HALF, OTHER_HALF = VOCABULARY.index(b"\xc3"), VOCABULARY.index(b"\xa9")


def output(*, prefix: str = "", logprobs: bool = False, **params: Any) -> LlmOutput:
    return LlmOutput(Letters(), SamplingParams(**params), prefix=prefix, logprobs=logprobs)


def event(token: int, finish: FinishReason | None = None, **more: Any) -> TokenEvent:
    return TokenEvent(1, TokenChoice(token), finish, **more)


def told(choice: LlmOutput, text: str) -> list[str]:
    """Let an output have the tokens of a text; what it released after each of them."""
    released = []
    for letter in text:
        choice.push(event(LETTERS.index(letter) + 1))
        released.append(choice.release().text)
        if choice.finish is not None:
            break
    return released


def test_what_may_be_a_stop_text_is_held_back() -> None:
    choice = output(stop=("abc",))
    assert told(choice, "xababcx") == ["x", "", "", "ab", "", ""]
    assert choice.finish is FinishReason.STOP


def test_what_was_held_back_comes_with_the_end() -> None:
    choice = output(stop=("abc",))
    assert told(choice, "xab") == ["x", "", ""]
    choice.push(event(HALF, FinishReason.LENGTH))
    last = choice.release()
    assert (last.text, last.finish_reason) == ("ab�", "length")
    assert last.output_tokens == 1


def test_only_text_and_the_end_of_it_are_news() -> None:
    choice = output(stop=("b",))
    news = []
    for token in (HALF, OTHER_HALF, 1, 2):
        choice.push(event(token))
        news.append(choice.has_news)
        if choice.has_news:
            choice.release()
    assert news == [False, True, True, True]
    assert not choice.has_news


def test_a_stop_text_before_the_least_number_of_tokens_is_text() -> None:
    choice = output(stop=("a",), min_tokens=3)
    assert told(choice, "aaaa") == ["a", "a", "a", ""]
    assert choice.finish is FinishReason.STOP


def test_an_end_token_is_shown_only_where_stop_texts_are() -> None:
    for include, text in ((False, "x"), (True, "xq")):
        choice = output(include_stop_str_in_output=include, stop_token_ids=(17,))
        choice.push(event(LETTERS.index("x") + 1))
        choice.push(event(17, FinishReason.STOP, stop_token=True))
        last = choice.release()
        assert (last.text, last.output_tokens, last.finish_reason) == (text, 2, "stop")


def test_half_a_character_is_no_news() -> None:
    choice = output()
    choice.push(event(HALF))
    assert choice.release().text == ""
    choice.push(event(OTHER_HALF))
    released = choice.release()
    assert (released.text, released.output_tokens) == ("é", 1)


def test_everything_at_once_is_what_the_parts_are() -> None:
    whole, parts = output(prefix="in"), output(prefix="in")
    told(parts, "")
    texts = [parts.release().text]
    for letter in "side":
        for each in (whole, parts):
            each.push(event(LETTERS.index(letter) + 1))
        texts.append(parts.release().text)
    assert texts == ["in", "s", "i", "d", "e"]
    released = whole.release()
    assert (released.text, released.output_tokens) == ("inside", 4)


def test_log_probabilities_are_released_once_and_added_up() -> None:
    choice = output(logprobs=True)
    for token, logprob in ((1, -0.5), (2, -0.25)):
        top = ((3, -0.125), (token, logprob))
        choice.push(TokenEvent(1, TokenChoice(token, logprob, 2, top)))
    released = choice.release()
    assert released.cumulative_logprob == -0.75
    assert released.logprobs is not None
    assert [place.chosen.text for place in released.logprobs] == ["a", "b"]
    assert [(each.text, each.rank) for each in released.logprobs[1].top] == [("c", 1), ("b", 2)]
    later = choice.release()
    assert (later.logprobs, later.cumulative_logprob, later.output_tokens) == ([], -0.75, 0)
