"""Keys, entries and the local cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritrio.memory.response_cache import (
    ENTRY_OVERHEAD_BYTES,
    KEY_BYTES,
    OUTPUT_OVERHEAD_BYTES,
    PARAMETER_OVERHEAD_BYTES,
    CachedOutput,
    Entry,
    LocalCache,
    decode_entry,
    encode_entry,
    input_bytes,
    request_key,
)
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.tensors import Array, Tensor


def request(inputs: dict[str, Array] | None = None, outputs: tuple[str, ...] = ()) -> InferRequest:
    made = InferRequest("model")
    for name, array in (inputs or {"A": np.arange(4, dtype=np.int32)}).items():
        datatype = {"i": "INT32", "f": "FP32", "u": "UINT32", "O": "BYTES"}[array.dtype.kind]
        made.inputs[name] = Tensor(name, datatype, array.shape, array=array)
    made.outputs = tuple(map(RequestedOutput, outputs))
    return made


def key(
    inputs: dict[str, Array] | None = None,
    outputs: tuple[str, ...] = (),
    *,
    name: str = "model",
    version: str = "1",
    load: str = "",
    change: Callable[[InferRequest], object] = lambda _: None,
) -> bytes:
    made = request(inputs, outputs)
    change(made)
    return request_key(name, version, load, made)


def entry(name: str = "OUT", size: int = 0) -> Entry:
    return Entry((CachedOutput(name, "UINT8", (size,), bytes(size)),), {})


FOUR = np.arange(4, dtype=np.int32)
ONE, TWO = np.ones(2, np.int32), np.full(2, 2, np.int32)


def test_a_key_has_256_bits() -> None:
    assert len(key()) == KEY_BYTES == 32


def test_the_order_of_inputs_and_of_outputs_asked_for_does_not_matter() -> None:
    assert key({"A": ONE, "B": TWO}) == key({"B": TWO, "A": ONE})
    assert key(outputs=("X", "Y")) == key(outputs=("Y", "X"))


def test_a_tensor_has_one_key_in_both_forms() -> None:
    raw = request({"A": FOUR})
    raw.inputs = {"A": Tensor("A", "INT32", (4,), raw=FOUR.tobytes())}
    assert request_key("model", "1", "", raw) == key({"A": FOUR})


def test_what_is_of_the_request_and_not_of_the_answer_does_not_matter() -> None:
    def change(made: InferRequest) -> None:
        made.id = "7"
        made.priority = 3
        made.timeout_us = 1000
        made.model_version = "1"
        made.binary_default = True

    def with_classes(made: InferRequest) -> None:
        made.outputs = (RequestedOutput("X", binary=True, classification_count=3),)

    assert key(change=change) == key()
    assert key(change=with_classes) == key(outputs=("X",))


def in_sequence(
    sequence_id: int | str, *, start: bool = False, end: bool = False
) -> Callable[[InferRequest], None]:
    def change(made: InferRequest) -> None:
        made.sequence_id = sequence_id
        made.sequence_start = start
        made.sequence_end = end

    return change


DIFFERENT: dict[str, bytes] = {
    "as it is": key(),
    "other model": key(name="model2"),
    "other version": key(version="2"),
    "other load": key(load="2"),
    "of a sequence": key(change=in_sequence(1)),
    "of another sequence": key(change=in_sequence(2)),
    "of a sequence with a name": key(change=in_sequence("1")),
    "first of a sequence": key(change=in_sequence(1, start=True)),
    "last of a sequence": key(change=in_sequence(1, end=True)),
    "only one of a sequence": key(change=in_sequence(1, start=True, end=True)),
    "first of no sequence": key(change=in_sequence(0, start=True)),
    "other bytes": key({"A": FOUR + 1}),
    "other shape": key({"A": FOUR.reshape(2, 2)}),
    "rows of one": key({"A": FOUR.reshape(4, 1)}),
    "other datatype": key({"A": FOUR.astype(np.uint32)}),
    "other input name": key({"B": FOUR}),
    "two inputs": key({"A": ONE, "B": TWO}),
    "two inputs, swapped": key({"A": TWO, "B": ONE}),
    "one output": key(outputs=("X",)),
    "other output": key(outputs=("Y",)),
    "both outputs": key(outputs=("X", "Y")),
    "a parameter": key(change=lambda r: r.parameters.update(p=1)),
    "another value": key(change=lambda r: r.parameters.update(p=2)),
    "a float": key(change=lambda r: r.parameters.update(p=1.0)),
    "a bool": key(change=lambda r: r.parameters.update(p=True)),
    "text": key(change=lambda r: r.parameters.update(p="1")),
    "another parameter": key(change=lambda r: r.parameters.update(q=1)),
}


@pytest.mark.parametrize("what", list(DIFFERENT))
def test_what_the_answer_may_depend_on_has_a_key_of_its_own(what: str) -> None:
    others = [known for other, known in DIFFERENT.items() if other != what]
    assert DIFFERENT[what] not in others


def test_bytes_elements_are_told_apart_by_where_they_end() -> None:
    def texts(*elements: bytes) -> dict[str, Array]:
        array = np.empty(len(elements), np.object_)
        array[:] = elements
        return {"A": array}

    assert key(texts(b"ab", b"c")) != key(texts(b"a", b"bc"))


def test_a_name_that_no_encoding_has_can_be_hashed() -> None:
    strange = key(change=lambda r: r.parameters.update({"\ud800": "\udc00"}))
    assert strange != key(change=lambda r: r.parameters.update({"\ud800": "\udc01"}))


def test_input_bytes_are_those_of_all_inputs() -> None:
    assert input_bytes(request({"A": FOUR, "B": ONE})) == 24


def test_an_entry_counts_its_bytes_its_names_and_what_surrounds_them() -> None:
    made = Entry(
        (CachedOutput("OUT", "INT32", (2,), bytes(8)), CachedOutput("B", "UINT8", (1,), b"x")),
        {"score": 1.5},
    )
    outputs = 2 * OUTPUT_OVERHEAD_BYTES + 3 + 8 + 1 + 1
    parameters = PARAMETER_OVERHEAD_BYTES + len("score") + len("1.5")
    assert made.byte_size == ENTRY_OVERHEAD_BYTES + outputs + parameters


def response() -> InferResponse:
    texts = np.empty((2,), np.object_)
    texts[:] = [b"one", b"\xff\x00"]
    made = InferResponse(
        "model",
        "1",
        "7",
        [
            Tensor("F", "FP32", (2, 2), array=np.arange(4, dtype=np.float32).reshape(2, 2).T),
            Tensor("T", "BYTES", (2,), array=texts),
            Tensor("E", "INT64", (0, 3), array=np.empty((0, 3), np.int64)),
        ],
    )
    made.parameters = {"b": True, "i": 2**70, "f": 0.1, "n": float("inf"), "s": "\ud800é"}
    return made


def assert_same(answer: InferResponse, request_id: str) -> None:
    expected = response()
    assert (answer.model_name, answer.model_version, answer.id) == ("model", "1", request_id)
    assert answer.final
    assert answer.error is None
    assert answer.parameters == expected.parameters
    assert list(map(type, answer.parameters.values())) == [bool, int, float, float, str]
    for tensor, wanted in zip(answer.outputs, expected.outputs, strict=True):
        assert (tensor.name, tensor.datatype, tensor.shape) == (
            wanted.name,
            wanted.datatype,
            wanted.shape,
        )
        np.testing.assert_array_equal(tensor.array, wanted.array)


def test_a_hit_answers_as_the_model_did_with_the_id_of_its_own_request() -> None:
    cache = LocalCache(10_000)
    cache.insert(b"k", Entry.of(response()))
    found = cache.lookup(b"k")
    assert found is not None
    assert_same(found.response("model", "1", "8"), "8")


def test_an_entry_survives_its_encoding() -> None:
    assert_same(decode_entry(encode_entry(Entry.of(response()))).response("model", "1", "8"), "8")


def test_a_cached_answer_does_not_change_with_the_memory_it_came_from() -> None:
    array = np.zeros(2, np.int32)
    made = InferResponse("model", "1", outputs=[Tensor("OUT", "INT32", (2,), array=array)])
    cache = LocalCache(10_000)
    cache.insert(b"k", Entry.of(made))
    array += 1
    found = cache.lookup(b"k")
    assert found is not None
    assert found.response("model", "1", "").outputs[0].array.tolist() == [0, 0]
    found.response("model", "1", "").parameters["later"] = 1
    assert found.parameters == {}


def test_any_cut_of_an_entry_is_no_entry() -> None:
    data = encode_entry(Entry.of(response()))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="expected"):
            decode_entry(data[:size])
    with pytest.raises(ValueError, match=f"expected {len(data)} bytes, got {len(data) + 1}"):
        decode_entry(data + b"\0")


@given(st.data())
def test_rubbish_is_refused_as_a_value_error_or_is_a_well_formed_entry(data: st.DataObject) -> None:
    whole = bytearray(encode_entry(Entry.of(response())))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_entry(bytes(whole))
    except ValueError:
        return
    for tensor in found.response("model", "1", "").outputs:
        assert tensor.array.shape == tensor.shape


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{}",
        b'{"outputs":1,"parameters":{}}',
        b'{"outputs":[[1,"INT8",[],0]],"parameters":{}}',
        b'{"outputs":[["A","INT9",[0],0]],"parameters":{}}',
        b'{"outputs":[["A",["x"],[0],0]],"parameters":{}}',
        b'{"outputs":[["A","INT8",[-1],0]],"parameters":{}}',
        b'{"outputs":[["A","INT8",[true],1]],"parameters":{}}',
        b'{"outputs":[["A","INT8",[1],0]],"parameters":{}}',
        b'{"outputs":[],"parameters":[]}',
        b'{"outputs":[],"parameters":{"a":[1]}}',
        b'{"outputs":[],"parameters":' + b"[" * 100_000,
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    start = encode_entry(entry())[:8]
    with pytest.raises(ValueError, match=r"expected|needs|fit"):
        decode_entry(start + len(header).to_bytes(4, "little") + header)


def test_an_entry_of_another_version_of_the_format_is_refused() -> None:
    data = encode_entry(entry())
    with pytest.raises(ValueError, match="of this version"):
        decode_entry(data[:7] + b"\x02" + data[8:])


def test_the_entry_used_longest_ago_goes_first() -> None:
    size = entry().byte_size
    cache = LocalCache(2 * size)
    cache.insert(b"a", entry())
    cache.insert(b"b", entry())
    assert cache.lookup(b"a") is not None
    cache.insert(b"c", entry())
    assert cache.used_bytes == 2 * size
    assert [cache.lookup(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    assert cache.statistics.evictions == 1


def test_an_entry_as_large_as_the_cache_fits_and_one_byte_more_does_not() -> None:
    cache = LocalCache(entry(size=100).byte_size)
    cache.insert(b"a", entry(size=1))
    cache.insert(b"b", entry(size=101))
    assert cache.lookup(b"a") is not None
    assert cache.lookup(b"b") is None
    cache.insert(b"b", entry(size=100))
    assert cache.used_bytes == cache.size_bytes
    assert (cache.lookup(b"a"), len(cache)) == (None, 1)


def test_an_entry_that_is_there_already_stays() -> None:
    cache = LocalCache(10_000)
    cache.insert(b"a", entry("FIRST"))
    cache.insert(b"a", entry("SECOND"))
    found = cache.lookup(b"a")
    assert found is not None
    assert found.outputs[0].name == "FIRST"
    assert cache.used_bytes == entry("FIRST").byte_size


def test_a_closed_cache_is_empty() -> None:
    cache = LocalCache(10_000)
    cache.insert(b"a", entry())
    cache.close()
    assert (len(cache), cache.used_bytes, cache.lookup(b"a")) == (0, 0, None)


OPERATIONS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), st.integers(0, 400)),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 3000))
def test_the_cache_is_a_dictionary_that_forgets_the_oldest(
    operations: list[tuple[bool, bytes, int]], size_bytes: int
) -> None:
    cache = LocalCache(size_bytes)
    model: OrderedDict[bytes, int] = OrderedDict()
    hits = misses = evictions = 0
    for inserts, name, size in operations:
        if inserts:
            cache.insert(name, entry(size=size))
            cost = entry(size=size).byte_size
            if cost <= size_bytes and name not in model:
                while sum(model.values()) + cost > size_bytes:
                    model.popitem(last=False)
                    evictions += 1
                model[name] = cost
        else:
            found = cache.lookup(name)
            assert (None if found is None else found.byte_size) == model.get(name)
            if name in model:
                hits += 1
                model.move_to_end(name)
            else:
                misses += 1
        assert cache.used_bytes == sum(model.values()) <= size_bytes
        assert len(cache) == len(model)
    counted = cache.statistics
    assert (counted.hits, counted.misses, counted.evictions) == (hits, misses, evictions)
