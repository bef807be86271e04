"""The official clients against the example models, compared with onnxruntime called directly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.server_process import ServerProcess

from .expected import INPUTS, OUTPUT, Arrays, answer
from .raw_http import ask

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODELS = ["magika", "minilm"]
ROWS = [1, 5]
TOLERANCE = 1e-5
REQUESTS = 24
ONNX_TYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}


def tensors(library: Any, inputs: Arrays, **options: bool) -> list[Any]:
    """The inputs as one of the client libraries wants them."""
    made = []
    for name, values in inputs.items():
        tensor = library.InferInput(name, list(values.shape), ONNX_TYPES[values.dtype.name])
        tensor.set_data_from_numpy(values, **options)
        made.append(tensor)
    return made


def assert_right(model: str, inputs: Arrays, result: Any) -> None:
    values = result.as_numpy(OUTPUT[model])
    assert values is not None
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, answer(model, inputs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", MODELS)
def test_http_client_gets_what_onnxruntime_computes(
    examples: ServerProcess, model: str, rows: int, binary_input: bool, binary_output: bool
) -> None:
    inputs = INPUTS[model](rows)
    output = triton_http.InferRequestedOutput(OUTPUT[model], binary_data=binary_output)
    with triton_http.InferenceServerClient(examples.http_url) as client:
        sent = tensors(triton_http, inputs, binary_data=binary_input)
        assert_right(model, inputs, client.infer(model, sent, outputs=[output]))


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", MODELS)
def test_grpc_client_gets_what_onnxruntime_computes(
    examples: ServerProcess, model: str, rows: int, compression: str | None
) -> None:
    inputs = INPUTS[model](rows)
    with triton_grpc.InferenceServerClient(examples.grpc_url) as client:
        sent = tensors(triton_grpc, inputs)
        assert_right(model, inputs, client.infer(model, sent, compression_algorithm=compression))


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_http_client_may_compress_requests_and_ask_for_compressed_answers(
    examples: ServerProcess, compression: str
) -> None:
    inputs = INPUTS["magika"](5)
    with triton_http.InferenceServerClient(examples.http_url) as client:
        result = client.infer(
            "magika",
            tensors(triton_http, inputs),
            request_compression_algorithm=compression,
            response_compression_algorithm=compression,
        )
    assert_right("magika", inputs, result)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", MODELS)
def test_asyncio_clients_at_once_get_each_their_own_answer(
    examples: ServerProcess, model: str, protocol: str
) -> None:
    import asyncio  # noqa: TID251 - the client under test is built on it

    import tritonclient.grpc.aio as triton_grpc_aio
    import tritonclient.http.aio as triton_http_aio

    async def ask_all() -> list[Any]:
        library, url = (
            (triton_http_aio, examples.http_url)
            if protocol == "http"
            else (triton_grpc_aio, examples.grpc_url)
        )
        async with library.InferenceServerClient(url) as client:
            assert await client.is_model_ready(model)
            return await asyncio.gather(
                *(client.infer(model, tensors(library, each)) for each in asked)
            )

    asked = [INPUTS[model](1 + seed % 3, seed) for seed in range(REQUESTS)]
    for inputs, result in zip(asked, asyncio.run(ask_all()), strict=True):
        assert_right(model, inputs, result)


def batches(examples: ServerProcess, model: str) -> tuple[int, int]:
    """Inferences and executions so far."""
    (stats,) = ask(examples.http_port, "GET", f"/v2/models/{model}/stats").json()["model_stats"]
    return stats["inference_count"], stats["execution_count"]


def test_requests_at_once_run_as_batches_and_get_each_their_own_answer(
    examples: ServerProcess,
) -> None:
    asked = [INPUTS["minilm"](1, seed) for seed in range(4 * REQUESTS)]
    inferences, executions = batches(examples, "minilm")
    with (
        triton_grpc.InferenceServerClient(examples.grpc_url) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        results = list(
            pool.map(lambda each: client.infer("minilm", tensors(triton_grpc, each)), asked)
        )
    for inputs, result in zip(asked, results, strict=True):
        assert_right("minilm", inputs, result)
    now_inferences, now_executions = batches(examples, "minilm")
    assert now_inferences - inferences == len(asked)
    assert now_executions - executions < len(asked)


def test_classification_names_the_kinds(examples: ServerProcess) -> None:
    inputs = INPUTS["magika"](1)
    for library, url in (
        (triton_http, examples.http_url),
        (triton_grpc, examples.grpc_url),
    ):
        output = library.InferRequestedOutput(OUTPUT["magika"], class_count=2)
        with library.InferenceServerClient(url) as client:
            result = client.infer("magika", tensors(library, inputs), outputs=[output])
        first, second = result.as_numpy(OUTPUT["magika"])[0]
        score, _, label = first.decode().split(":")
        assert label == "python"
        assert float(score) == pytest.approx(answer("magika", inputs).max(), abs=TOLERANCE)
        assert float(second.decode().split(":")[0]) <= float(score)


def test_add_sub_and_identity_over_both_protocols(examples: ServerProcess) -> None:
    left, right = (np.array([row], np.float32) for row in ([1, 2, 3, 4], [10, 20, 30, 40]))
    for library, url in (
        (triton_http, examples.http_url),
        (triton_grpc, examples.grpc_url),
    ):
        with library.InferenceServerClient(url) as client:
            sent = tensors(library, {"INPUT0": left, "INPUT1": right})
            result = client.infer("add_sub", sent, request_id="seven")
            assert result.as_numpy("OUTPUT0").tolist() == (left + right).tolist()
            assert result.as_numpy("OUTPUT1").tolist() == (left - right).tolist()
            response = result.get_response()
            assert (response["id"] if isinstance(response, dict) else response.id) == "seven"
            echoed = client.infer("identity", tensors(library, {"INPUT0": left}))
            assert echoed.as_numpy("OUTPUT0").tolist() == left.tolist()


def test_management_calls_of_both_clients_agree(examples: ServerProcess) -> None:
    with (
        triton_http.InferenceServerClient(examples.http_url) as http,
        triton_grpc.InferenceServerClient(examples.grpc_url) as grpc,
    ):
        assert http.is_server_live()
        assert grpc.is_server_live()
        assert http.is_server_ready()
        assert grpc.is_server_ready()
        assert http.get_server_metadata() == grpc.get_server_metadata(as_json=True)
        for model in ("identity", "add_sub", *MODELS):
            assert http.is_model_ready(model)
            assert grpc.is_model_ready(model)
            metadata = http.get_model_metadata(model)
            assert metadata["name"] == model
            assert metadata["versions"] == ["1"]
            assert [each["name"] for each in metadata["inputs"]] == [
                each["name"] for each in grpc.get_model_metadata(model, as_json=True)["inputs"]
            ]
            config = grpc.get_model_config(model).config
            assert http.get_model_config(model)["max_batch_size"] == config.max_batch_size
        names = {each["name"] for each in http.get_model_repository_index()}
        assert names >= {"identity", "add_sub", *MODELS}
        assert names == {each.name for each in grpc.get_model_repository_index().models}
        with pytest.raises(triton_http.InferenceServerException, match="nothing"):
            http.infer("nothing", [])
        with pytest.raises(triton_grpc.InferenceServerException, match="nothing"):
            grpc.infer("nothing", [])
