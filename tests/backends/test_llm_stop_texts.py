"""Stop texts end a text wherever its parts are cut."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tritrio.backends.llm.stop_texts import StopTexts


def run(stops: list[str], parts: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """What is given out in all, and what stopped it."""
    search = StopTexts(stops, include=include)
    given_out = ""
    for part in parts:
        emit, stopped = search.push(part)
        given_out += emit
        if stopped is not None:
            return given_out, stopped
    return given_out + search.flush(), None


def naive(stops: list[str], text: str, *, include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def test_a_stop_text_may_come_in_parts_and_is_left_out() -> None:
    assert run(["\n\nUser:"], ["Yes.\n", "\nUs", "er: and"]) == ("Yes.", "\n\nUser:")


def test_a_stop_text_is_kept_if_asked_but_nothing_behind_it() -> None:
    assert run(["END"], ["an EN", "D of"], include=True) == ("an END", "END")


def test_the_match_that_ends_first_counts() -> None:
    assert run(["abcdef", "cd"], ["xabcdefcd"]) == ("xab", "cd")


def test_of_matches_that_end_together_the_longest_counts() -> None:
    assert run(["d", "bcd"], ["abcd"]) == ("a", "bcd")


def test_only_what_could_become_a_stop_text_is_held_back() -> None:
    search = StopTexts(["stop!"], include=False)
    assert search.push("do not st") == ("do not ", None)
    assert search.push("o") == ("", None)
    assert search.push("re it") == ("store it", None)
    assert search.push("s") == ("", None)
    assert search.flush() == "s"
    assert search.flush() == ""


def test_a_failed_match_may_hold_the_beginning_of_the_next() -> None:
    search = StopTexts(["aab"], include=False)
    assert search.push("aa") == ("", None)
    assert search.push("a") == ("a", None)
    assert search.push("b") == ("", "aab")


def test_without_stop_texts_everything_passes_at_once() -> None:
    assert StopTexts([], include=False).push("all of it") == ("all of it", None)


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("abc", max_size=6), max_size=8),
    st.booleans(),
)
def test_parts_end_where_the_whole_text_would(
    stops: list[str], parts: list[str], include: bool
) -> None:
    assert run(stops, parts, include=include) == naive(stops, "".join(parts), include=include)


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=6), max_size=8),
)
def test_what_is_held_back_begins_a_stop_text(stops: list[str], parts: list[str]) -> None:
    search = StopTexts(stops, include=False)
    given_out = ""
    for count, part in enumerate(parts, 1):
        emit, stopped = search.push(part)
        given_out += emit
        if stopped is not None:
            return
        held = "".join(parts[:count])[len(given_out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
