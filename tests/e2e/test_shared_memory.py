"""The official client's shared memory, over every transport, with models of every kind."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the clients' own loop
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.support.server_process import ServerProcess, running_server
from tests.support.shared_memory import DIRECTORY, PAGE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PATIENCE_S = 30.0
LARGE = 600_000
"""Elements of FP32 that are copied on a thread."""
TRUNCATIONS = 40

IDENTITY = 'backend: "identity"\n'
FLOATS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
CONFIGS = {
    "floats": IDENTITY + FLOATS,
    "cached": IDENTITY + "response_cache { enable: true }\n" + FLOATS,
    "text": IDENTITY + FLOATS.replace("FP32", "STRING"),
    "chain": 'platform: "ensemble"\n'
    + FLOATS
    + """ensemble_scheduling { step [
  { model_name: "floats" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
    output_map { key: "OUTPUT0" value: "MIDDLE" } },
  { model_name: "cached" model_version: -1 input_map { key: "INPUT0" value: "MIDDLE" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
""",
    "sum_and_difference": """backend: "distributed_addsub"
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 4 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 4 ] }
]
""",
    "running_sum": """backend: "sequence"
max_batch_size: 2
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  control_input [
    { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
    { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
  ]
}
""",
    "square": """backend: "square"
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lets clients register shared memory; it must end well."""
    place = tmp_path_factory.mktemp("shared-memory")
    for name, config in CONFIGS.items():
        (place / "models" / name / "1").mkdir(parents=True)
        (place / "models" / name / "config.pbtxt").write_text(config)
    flags = ("--allow-client-shm=true", "--cache-config=local,size=1048576")
    with running_server(place / "models", place / "log", *flags) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    """A client over each transport; nothing is left registered."""
    library, url = (
        (triton_http, server.http_url)
        if request.param == "http"
        else (triton_grpc, server.grpc_url)
    )
    with library.InferenceServerClient(url) as made:
        made.library = library
        yield made
        made.unregister_system_shared_memory()


_numbers = itertools.count()


@contextmanager
def region(client: Any, size: int, name: str = "r") -> Iterator[tuple[Any, Path]]:
    """A registered region of `size` bytes, and the file of its object."""
    key = f"tritrio_e2e_{os.getpid()}_{next(_numbers)}"
    handle = shm.create_shared_memory_region(name, key, size, create_only=True)
    try:
        client.register_system_shared_memory(name, key, size)
        yield handle, DIRECTORY / key
    finally:
        shm.destroy_shared_memory_region(handle)


def shared_input(library: Any, name: str, array: Any, offset: int = 0, *, size: int = -1) -> Any:
    """An input of the array's form that lies in the region "r"."""
    datatype = "BYTES" if array.dtype == object else {"f": "FP32", "i": "INT32"}[array.dtype.kind]
    made = library.InferInput(name, list(array.shape), datatype)
    made.set_shared_memory("r", array.nbytes if size < 0 else size, offset)
    return made


def shared_output(library: Any, name: str, size: int, offset: int) -> Any:
    """A requested output that goes into the region "r"."""
    made = library.InferRequestedOutput(name)
    made.set_shared_memory("r", size, offset)
    return made


def infer(client: Any, model: str, handle: Any, array: Any, **more: Any) -> Any:
    """Send an array through a model with one input and one output, both in the region."""
    names = {"running_sum": ("INPUT", "OUTPUT")}.get(model, ("INPUT0", "OUTPUT0"))
    library, size = client.library, array.nbytes
    shm.set_shared_memory_region(handle, [array])
    result = client.infer(
        model,
        [shared_input(library, names[0], array)],
        outputs=[shared_output(library, names[1], size, size)],
        **more,
    )
    output = result.get_output(names[1])
    shape = output["shape"] if isinstance(output, dict) else output.shape
    assert list(shape) == list(array.shape)
    return shm.get_contents_as_numpy(handle, array.dtype, array.shape, offset=size)


@pytest.mark.parametrize("model", ["floats", "chain", "cached"])
@pytest.mark.parametrize("count", [5, LARGE])
def test_tensors_come_from_and_go_to_a_region(client: Any, model: str, count: int) -> None:
    with region(client, 8 * LARGE) as (handle, _):
        for value in (0.5, 1.5, 1.5):  # the last is in the cache
            array = np.full(count, value, np.float32)
            np.testing.assert_array_equal(infer(client, model, handle, array), array)


def test_the_status_lists_what_is_registered(client: Any) -> None:
    with region(client, PAGE) as (_, path):
        status = client.get_system_shared_memory_status()
        if client.library is triton_http:
            assert status == [{"name": "r", "key": path.name, "offset": 0, "byte_size": PAGE}]
        else:
            (entry,) = status.regions.values()
            assert (entry.name, entry.key, entry.byte_size) == ("r", path.name, PAGE)
        client.unregister_system_shared_memory("r")
        with pytest.raises(InferenceServerException, match="'r'"):
            client.get_system_shared_memory_status("r")
    handle = b"AA==" if client.library is triton_http else bytes(1)
    with pytest.raises(InferenceServerException, match="64 bytes"):
        client.register_cuda_shared_memory("c", handle, 0, PAGE)


def test_text_lies_in_regions_as_it_does_in_messages(client: Any) -> None:
    texts = np.array([b"one", b"", "\u00e4\0".encode(), b"x" * 300], dtype=object)
    raw = serialize_byte_tensor(texts).item()
    library = client.library
    with region(client, PAGE) as (handle, _):
        shm.set_shared_memory_region(handle, [serialize_byte_tensor(texts)])
        source = shared_input(library, "INPUT0", texts, size=len(raw))
        target = shared_output(library, "OUTPUT0", 1000, 2000)
        client.infer("text", [source], outputs=[target])
        written = shm.get_contents_as_numpy(handle, np.object_, texts.shape, offset=2000)
        assert list(written) == list(texts)
        short = shared_input(library, "INPUT0", texts, size=len(raw) - 1)
        with pytest.raises(InferenceServerException, match="'INPUT0'"):
            client.infer("text", [short])


def test_a_tensor_without_elements_takes_no_bytes(client: Any) -> None:
    with region(client, PAGE):
        empty = np.empty(0, np.float32)
        library = client.library
        source = shared_input(library, "INPUT0", empty, size=0)
        target = shared_output(library, "OUTPUT0", 0, 0)
        result = client.infer("floats", [source], outputs=[target]).get_output("OUTPUT0")
        shape = result["shape"] if isinstance(result, dict) else result.shape
        assert list(shape) == [0]


def test_one_region_serves_inputs_and_outputs_beside_those_in_messages(client: Any) -> None:
    library = client.library
    ints = np.arange(4, dtype=np.int32)
    with region(client, PAGE) as (handle, _):
        shm.set_shared_memory_region(handle, [ints * 10])
        sent = library.InferInput("INPUT1", [4], "INT32")
        sent.set_data_from_numpy(ints)
        inputs = [shared_input(library, "INPUT0", ints), sent]
        wanted = [
            library.InferRequestedOutput("OUTPUT0"),
            shared_output(library, "OUTPUT1", 16, 64),
        ]
        result = client.infer("sum_and_difference", inputs, outputs=wanted)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ints * 11)
        difference = shm.get_contents_as_numpy(handle, np.int32, [4], offset=64)
        np.testing.assert_array_equal(difference, ints * 9)


def test_nothing_is_written_unless_every_output_fits(client: Any) -> None:
    library = client.library
    ints = np.arange(4, dtype=np.int32)
    with region(client, PAGE) as (handle, _):
        shm.set_shared_memory_region(handle, [ints])
        inputs = [shared_input(library, name, ints) for name in ("INPUT0", "INPUT1")]
        wanted = [shared_output(library, f"OUTPUT{i}", 16 - i, 64) for i in (0, 1)]
        with pytest.raises(InferenceServerException, match=r"'OUTPUT1' .* 15 bytes .* needs 16"):
            client.infer("sum_and_difference", inputs, outputs=wanted)
        untouched = shm.get_contents_as_numpy(handle, np.int32, [4], offset=64)
        np.testing.assert_array_equal(untouched, [0, 0, 0, 0])


def test_a_sequence_reads_each_request_when_it_comes(client: Any) -> None:
    with region(client, PAGE) as (handle, _):
        sums = []
        for value in (1, 2, 3):
            array = np.array([[value]], np.int32)
            options = {"sequence_id": 7, "sequence_start": value == 1, "sequence_end": value == 3}
            sums.append(int(infer(client, "running_sum", handle, array, **options).item()))
        assert sums == [1, 3, 6]


def test_a_decoupled_model_writes_each_response(server: ServerProcess) -> None:
    messages: SimpleQueue[Any] = SimpleQueue()
    with triton_grpc.InferenceServerClient(server.grpc_url) as client, region(client, PAGE) as made:
        handle, _ = made
        value = np.array([3], np.int32)
        shm.set_shared_memory_region(handle, [value])
        client.start_stream(lambda result, error: messages.put(error or result))
        client.async_stream_infer(
            "square",
            [shared_input(triton_grpc, "IN", value)],
            outputs=[shared_output(triton_grpc, "OUT", 4, 64)],
            enable_empty_final_response=True,
        )
        replies = [messages.get(timeout=PATIENCE_S).get_response() for _ in range(4)]
        assert [list(reply.raw_output_contents) for reply in replies] == [[b""]] * 3 + [[]]
        assert shm.get_contents_as_numpy(handle, np.int32, [1], offset=64).item() == 3
        client.stop_stream()
        client.unregister_system_shared_memory()


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_asyncio_clients_use_regions(server: ServerProcess, transport: str) -> None:
    library, url = (
        (triton_http_aio, server.http_url)
        if transport == "http"
        else (triton_grpc_aio, server.grpc_url)
    )
    key = f"tritrio_e2e_{os.getpid()}_{next(_numbers)}"
    handle = shm.create_shared_memory_region("r", key, PAGE, create_only=True)
    array = np.array([1.5, 2.5], np.float32)
    shm.set_shared_memory_region(handle, [array])

    async def ask() -> None:
        async with library.InferenceServerClient(url) as client:
            await client.register_system_shared_memory("r", key, PAGE)
            await client.infer(
                "floats",
                [shared_input(library, "INPUT0", array)],
                outputs=[shared_output(library, "OUTPUT0", 8, 64)],
            )
            await client.unregister_system_shared_memory("r")

    try:
        asyncio.run(ask())
        np.testing.assert_array_equal(
            shm.get_contents_as_numpy(handle, np.float32, [2], offset=64), array
        )
    finally:
        shm.destroy_shared_memory_region(handle)


def test_an_object_that_becomes_shorter_at_any_time_harms_nobody_else(
    server: ServerProcess,
) -> None:
    """Requests of two clients run while the object of one is cut and grown again."""
    size = 4 * LARGE
    with triton_http.InferenceServerClient(server.http_url, concurrency=4) as client:
        client.library = triton_http
        with region(client, 2 * size) as (_, path):
            array = np.zeros(LARGE, np.float32)
            inputs = [shared_input(triton_http, "INPUT0", array)]
            outputs = [shared_output(triton_http, "OUTPUT0", size, size)]

            def begin() -> Any:
                return client.async_infer("floats", inputs, outputs=outputs)

            outcomes = Counter[str]()
            pending = [begin() for _ in range(4)]
            for number in range(TRUNCATIONS):
                os.truncate(path, (0, PAGE, size, size + PAGE)[number % 4])
                outcomes[outcome(pending.pop(0).get_result)] += 1
                os.truncate(path, 2 * size)
                pending.append(begin())
            for one in pending:
                outcomes[outcome(one.get_result)] += 1
            os.truncate(path, 0)
            assert outcome(begin().get_result) == "refused"
            os.truncate(path, 2 * size)
            assert outcome(begin().get_result) == "answered"
            assert outcomes.keys() <= {"answered", "refused"}
            assert outcomes.total() == TRUNCATIONS + 4
        assert client.is_server_live()
        client.unregister_system_shared_memory()
    assert server.process.poll() is None


def outcome(get: Callable[[], Any]) -> str:
    """Whether a request was answered, or refused for what its object lacks."""
    try:
        get()
    except InferenceServerException as error:
        return "refused" if "shorter" in str(error) else str(error)
    return "answered"
