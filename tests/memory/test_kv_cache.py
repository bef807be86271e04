from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from tritrio.memory.kv_cache import KvCache
from tritrio.protocol.tensors import Array

ROWS, TOKENS = 3, 5
SHAPES = ((2, 4), (1, 3))


def cache_of(dtype: type[np.generic]) -> KvCache:
    """A cache in which every element has its own value."""
    cache = KvCache(np, rows=ROWS, tokens=TOKENS, shapes=SHAPES, dtype=np.dtype(dtype))
    for array in cache.arrays:
        array[:] = np.arange(array.size).reshape(array.shape)
    return cache


def copies(cache: KvCache) -> list[Array]:
    return [array.copy() for array in cache.arrays]


@pytest.mark.parametrize(("dtype", "width"), [(np.float32, 4), (np.float16, 2)])
def test_bytes_are_what_the_arrays_take(dtype: type[np.generic], width: int) -> None:
    cache = cache_of(dtype)
    assert [array.shape for array in cache.arrays] == [(3, 2, 5, 4), (3, 1, 5, 3)]
    assert [array.dtype for array in cache.arrays] == [dtype, dtype]
    assert cache.token_bytes == (2 * 4 + 1 * 3) * width
    assert cache.size_bytes == sum(array.nbytes for array in cache.arrays)


def test_memory_begins_as_zeros() -> None:
    cache = KvCache(np, rows=1, tokens=2, shapes=SHAPES, dtype=np.dtype(np.float32))
    assert not any(array.any() for array in cache.arrays)


def test_rows_are_views_that_a_model_writes() -> None:
    cache = cache_of(np.float32)
    views = cache.rows(1, 2)
    assert all(view.flags.c_contiguous for view in views)
    views[0][0] = -1
    assert (cache.arrays[0][1] == -1).all()
    assert (cache.arrays[0][[0, 2]] >= 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_copy_is_of_so_many_tokens(dtype: type[np.generic]) -> None:
    cache = cache_of(dtype)
    before = copies(cache)
    cache.copy(2, 0, 3)
    for old, new in zip(before, cache.arrays, strict=True):
        assert (new[0, :, :3] == old[2, :, :3]).all()
        assert (new[0, :, 3:] == old[0, :, 3:]).all()
        assert (new[1:] == old[1:]).all()


@pytest.mark.parametrize(("first", "second"), [(2, 4), (4, 2), (5, 5), (0, 3), (3, 0)])
def test_a_swap_keeps_what_counts_of_both(first: int, second: int) -> None:
    cache = cache_of(np.float32)
    before = copies(cache)
    cache.swap(0, 2, first, second)
    for old, new in zip(before, cache.arrays, strict=True):
        assert (new[0, :, :second] == old[2, :, :second]).all()
        assert (new[2, :, :first] == old[0, :, :first]).all()
        assert (new[1] == old[1]).all()


def test_a_row_takes_memory_for_the_tokens_it_holds() -> None:
    cache = KvCache(np, rows=8, tokens=8192, shapes=[(2, 64)] * 2, dtype=np.dtype(np.float32))
    before_bytes = resident_bytes()
    for array in cache.arrays:
        array[:, :, :16] = 1
    assert cache.size_bytes == 64 * 1024**2
    assert resident_bytes() - before_bytes < 4 * 1024**2


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
