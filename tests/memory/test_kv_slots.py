from __future__ import annotations

import pytest

from tritrio.memory.kv_slots import KV_BLOCK_TOKENS, KvPlace, KvSlots, TokenChain

BLOCK = KV_BLOCK_TOKENS
SAME_HASH = 2**61 - 1
"""hash(SAME_HASH) == hash(0), so that blocks of either have one hash."""


def slots(rows: int = 3, blocks: int = 100, *, caching: bool = True, tokens: int = 1000) -> KvSlots:
    """Rows whose tokens take one byte each."""
    return KvSlots(
        rows=rows,
        tokens_per_row=tokens,
        bytes_per_token=1,
        budget_bytes=blocks * BLOCK,
        prefix_caching=caching,
    )


def chain(*parts: tuple[int, int]) -> TokenChain:
    """(token, how often) after one another."""
    return TokenChain(token for token, count in parts for _ in range(count))


def cache(kv: KvSlots, tokens: TokenChain) -> int:
    """Let a sequence compute all of its tokens and go; its row."""
    place = kv.take(tokens)
    kv.fill(place.row, len(tokens.tokens))
    kv.release(place.row)
    return place.row


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ([], [], 0),
        ([1], [2], 0),
        ([1] * 5, [1] * 3, 3),
        ([1] * 16, [1] * 16, 16),
        ([1] * 40, [1] * 35 + [2], 35),
        ([1] * 40, [1] * 32 + [2] * 8, 32),
        ([1] * 5000, [1] * 4999 + [2], 4999),
        ([1] * 16 + [2] * 16 + [1] * 16, [1] * 48, 16),
    ],
)
def test_a_common_beginning_is_found_to_the_token(
    first: list[int], second: list[int], common: int
) -> None:
    assert TokenChain(first).common_tokens(TokenChain(second), 10_000) == common
    assert TokenChain(second).common_tokens(TokenChain(first), 10_000) == common


def test_no_more_tokens_are_common_than_asked_for() -> None:
    assert chain((1, 100)).common_tokens(chain((1, 100)), 37) == 37
    assert chain((1, 100)).common_tokens(chain((1, 100)), 0) == 0


def test_tokens_appended_one_by_one_are_found_like_those_given_at_once() -> None:
    grown = TokenChain()
    for token in range(50):
        grown.append(token)
    assert grown.common_tokens(TokenChain(range(100)), 100) == 50


def test_blocks_with_the_same_hash_are_not_mistaken_for_each_other() -> None:
    first = TokenChain([7] * 20 + [0] * 80)
    second = TokenChain([7] * 20 + [SAME_HASH] * 80)
    assert first.likely_common_tokens(second, 96) == 96
    assert first.common_tokens(second, 100) == 20

    kv = slots()
    row = cache(kv, first)
    assert kv.take(second) == KvPlace(1, 20, source=row)


def test_a_row_that_only_hashes_like_a_prompt_is_not_its_beginning() -> None:
    kv = slots(rows=1)
    cache(kv, TokenChain([7] * 10 + [0] * 80))
    assert kv.take(TokenChain([7] * 10 + [SAME_HASH] * 80)) == KvPlace(0, 0)


def test_a_live_row_is_charged_for_whole_blocks() -> None:
    kv = slots()
    row = kv.take(chain((1, BLOCK + 1))).row
    assert (kv.used_bytes, kv.cached_bytes, kv.free_rows) == (2 * BLOCK, 0, 2)
    assert kv.reserve(row, 2 * BLOCK)
    assert kv.used_bytes == 2 * BLOCK
    assert kv.reserve(row, 2 * BLOCK + 1)
    assert kv.used_bytes == 3 * BLOCK
    kv.release(row)
    assert (kv.used_bytes, kv.cached_bytes, kv.free_rows) == (0, 0, 3)


def test_a_released_row_is_charged_for_what_it_holds() -> None:
    kv = slots()
    row = kv.take(chain((1, 5 * BLOCK))).row
    kv.fill(row, BLOCK + 3)
    kv.release(row)
    assert (kv.used_bytes, kv.cached_bytes) == (0, 2 * BLOCK)
    assert kv.tokens_in(row) == BLOCK + 3


def test_nothing_is_kept_where_it_is_of_no_use() -> None:
    kv = slots(caching=False)
    cache(kv, chain((1, 100)))
    assert kv.cached_bytes == 0
    assert kv.take(chain((1, 100))) == KvPlace(0, 0)

    kv = slots()
    row = kv.take(chain((1, 100))).row
    kv.fill(row, 100)
    kv.release(row, keep=False)
    assert kv.cached_bytes == 0
    assert kv.take(chain((1, 100))).tokens == 0


def test_a_beginning_is_taken_over_in_place_but_for_the_last_token() -> None:
    kv = slots()
    row = cache(kv, chain((1, 40)))
    assert kv.prefix_tokens(chain((1, 40))) == 39
    assert kv.take(chain((1, 40))) == KvPlace(row, 39)
    assert (kv.used_bytes, kv.cached_bytes) == (3 * BLOCK, 0)
    assert kv.tokens_in(row) == 39


def test_a_longer_conversation_goes_on_where_it_was() -> None:
    kv = slots()
    row = cache(kv, chain((1, 100)))
    assert kv.take(chain((1, 100), (2, 50))) == KvPlace(row, 100)


def test_the_beginning_of_a_live_row_is_copied() -> None:
    kv = slots()
    first = kv.take(chain((1, 100)))
    kv.fill(first.row, 60)
    assert kv.take(chain((1, 100))) == KvPlace(1, 60, source=first.row)
    assert kv.used_bytes == 2 * 7 * BLOCK


def test_only_what_is_computed_counts() -> None:
    kv = slots()
    kv.take(chain((1, 100)))
    assert kv.prefix_tokens(chain((1, 100))) == 0
    assert kv.take(chain((1, 100))) == KvPlace(1, 0)


def test_the_longest_beginning_wins() -> None:
    kv = slots(rows=4)
    for last in (20, 60, 40):
        kv.fill(kv.take(chain((1, last), (last, 50))).row, last + 50)
    assert kv.take(chain((1, 100))) == KvPlace(3, 60, source=1)


def test_among_equal_beginnings_a_free_row_wins_and_then_the_one_that_loses_least() -> None:
    kv = slots(rows=5)
    kv.fill(kv.take(chain((1, 40), (2, 9))).row, 49)
    rows = [kv.take(chain((1, 40), (last, last))).row for last in (30, 10, 20)]
    for row, last in zip(rows, (30, 10, 20), strict=True):
        kv.fill(row, 40 + last)
        kv.release(row)
    assert kv.take(chain((1, 40), (3, 5))) == KvPlace(rows[1], 40)


def test_less_than_a_block_is_not_worth_what_the_row_holds() -> None:
    kv = slots(rows=1)
    cache(kv, chain((1, BLOCK - 1), (2, 50)))
    assert kv.take(chain((1, BLOCK - 1), (3, 50))) == KvPlace(0, 0)


def test_a_short_beginning_is_copied_so_that_a_long_conversation_stays() -> None:
    kv = slots()
    row = cache(kv, chain((1, 32), (2, 200)))
    assert kv.take(chain((1, 32), (3, 10))) == KvPlace(1, 32, source=row)
    assert kv.tokens_in(row) == 232


def test_without_room_for_both_the_beginning_is_taken_over_in_place() -> None:
    kv = slots(blocks=15)
    row = cache(kv, chain((1, 32), (2, 200)))  # 15 blocks
    assert kv.take(chain((1, 32), (3, 10))) == KvPlace(row, 32)
    assert (kv.used_bytes, kv.cached_bytes) == (3 * BLOCK, 0)


def test_a_copy_does_not_displace_more_than_it_saves() -> None:
    kv = slots(rows=2)
    kept = cache(kv, chain((5, 300)))
    row = cache(kv, chain((1, 32), (2, 200)))
    assert kv.take(chain((1, 32), (3, 10))) == KvPlace(row, 32)
    assert kv.tokens_in(kept) == 300


def test_a_copy_takes_the_place_of_a_shorter_conversation() -> None:
    kv = slots(rows=2)
    other = cache(kv, chain((5, 100)))
    row = cache(kv, chain((1, 32), (2, 200)))
    assert kv.take(chain((1, 32), (3, 10))) == KvPlace(other, 32, source=row)
    assert kv.cached_bytes == 15 * BLOCK


def test_a_new_sequence_gets_the_lowest_empty_row_then_the_least_recently_used() -> None:
    kv = slots(rows=3)
    assert [cache(kv, chain((token, 50))) for token in (1, 2, 3)] == [0, 1, 2]
    kv.release(kv.take(chain((1, 60))).row)  # row 0 is the most recently used now
    assert cache(kv, chain((4, 50))) == 1
    assert cache(kv, chain((5, 50))) == 2
    assert cache(kv, chain((6, 50))) == 0


def test_a_row_was_in_use_until_it_was_released() -> None:
    kv = slots(rows=2)
    first, second = kv.take(chain((1, 50))).row, kv.take(chain((2, 50))).row
    for row in (second, first):
        kv.fill(row, 50)
        kv.release(row)
    assert kv.take(chain((3, 50))).row == second


def test_being_copied_from_counts_as_use() -> None:
    kv = slots(rows=3)
    cache(kv, chain((1, 32), (2, 100)))
    cache(kv, chain((3, 50)))
    copied = kv.take(chain((1, 32), (4, 10)))
    assert copied == KvPlace(2, 32, source=0)
    assert kv.take(chain((5, 10))).row == 1


def test_cached_state_gives_way_the_least_recently_used_first_and_its_end_first() -> None:
    kv = slots(rows=3, blocks=10)
    old = cache(kv, chain((1, 4 * BLOCK)))
    new = cache(kv, chain((2, 4 * BLOCK)))
    live = kv.take(chain((3, 3 * BLOCK))).row
    assert (kv.used_bytes, kv.cached_bytes) == (3 * BLOCK, 7 * BLOCK)
    assert (kv.tokens_in(old), kv.tokens_in(new)) == (3 * BLOCK, 4 * BLOCK)
    assert kv.reserve(live, 7 * BLOCK)
    assert (kv.tokens_in(old), kv.tokens_in(new)) == (0, 3 * BLOCK)
    assert kv.prefix_tokens(chain((2, 4 * BLOCK))) == 3 * BLOCK
    assert kv.used_bytes + kv.cached_bytes == 10 * BLOCK


def test_the_end_of_what_was_not_a_whole_block_is_dropped_with_it() -> None:
    kv = slots(rows=2, blocks=4)
    row = cache(kv, chain((1, 2 * BLOCK + 5)))
    kv.take(chain((2, 2 * BLOCK)))
    assert kv.tokens_in(row) == 2 * BLOCK
    assert kv.cached_bytes == 2 * BLOCK


def test_live_rows_do_not_give_way() -> None:
    kv = slots(rows=2, blocks=4)
    kv.take(chain((1, 2 * BLOCK)))
    second = kv.take(chain((2, BLOCK))).row
    assert kv.fits(BLOCK)
    assert not kv.fits(BLOCK, spare_blocks=1)
    assert not kv.fits(BLOCK + 1)
    assert kv.reserve(second, 2 * BLOCK)
    assert not kv.reserve(second, 2 * BLOCK + 1)
    assert kv.used_bytes == 4 * BLOCK


def test_state_without_bytes_is_not_charged() -> None:
    kv = KvSlots(rows=1, tokens_per_row=64, bytes_per_token=0, budget_bytes=0, prefix_caching=True)
    assert kv.state_tokens_max == 64
    assert kv.fits(64, spare_blocks=1000)
    row = cache(kv, chain((1, 64)))
    assert (kv.used_bytes, kv.cached_bytes) == (0, 0)
    assert kv.take(chain((1, 64))) == KvPlace(row, 63)


@pytest.mark.parametrize(("blocks", "most"), [(2, 32), (100, 100), (0, 0)])
def test_a_sequence_can_have_what_a_row_and_the_budget_allow(blocks: int, most: int) -> None:
    assert slots(blocks=blocks, tokens=100).state_tokens_max == most


def test_rows_change_places_with_all_they_hold() -> None:
    kv = slots()
    cache(kv, chain((1, 50)))
    live = kv.take(chain((2, 30))).row
    kv.fill(live, 20)
    kv.swap(0, live)
    assert (kv.tokens_in(0), kv.tokens_in(live)) == (20, 50)
    kv.release(0)
    assert kv.take(chain((1, 60))) == KvPlace(live, 50)
    assert kv.prefix_tokens(chain((2, 30))) == 20


def test_what_nobody_uses_can_be_forgotten() -> None:
    kv = slots()
    cache(kv, chain((1, 50)))
    live = kv.take(chain((2, 30))).row
    kv.fill(live, 30)
    kv.clear_cached()
    assert (kv.used_bytes, kv.cached_bytes) == (2 * BLOCK, 0)
    assert (kv.prefix_tokens(chain((1, 50))), kv.prefix_tokens(chain((2, 31)))) == (0, 30)
