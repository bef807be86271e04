"""A server whose repositories have a model of the same name."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from tests.actors.test_core import add_model
from tests.actors.test_ensemble_loading import ensemble_of
from tests.support.server_process import HOST, running_server

VALUES = np.array([[1, 2]], np.int32)


def read(url: str, method: str = "GET") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.e2e
def test_a_shared_name_is_refused_and_each_ensemble_uses_the_model_of_its_own_repository(
    tmp_path: Path,
) -> None:
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        add_model(place, "shared")
        add_model(place, f"of_{place.name}", ensemble_of("shared"))
    flags = ("--model-namespacing=true", f"--model-repository={places[1]}")
    with running_server(places[0], tmp_path / "log", *flags) as server:
        tensor = http.InferInput("INPUT0", VALUES.shape, "INT32")
        tensor.set_data_from_numpy(VALUES)
        with http.InferenceServerClient(server.http_url) as client:
            with pytest.raises(InferenceServerException, match="which 2 models have") as refused:
                client.infer("shared", [tensor])
            assert refused.value.status() == "400"
            answer = client.infer("of_two", [tensor])
            assert answer.as_numpy("OUTPUT0").tolist() == VALUES.tolist()
        tensor = grpc.InferInput("INPUT0", VALUES.shape, "INT32")
        tensor.set_data_from_numpy(VALUES)
        with grpc.InferenceServerClient(server.grpc_url) as client:
            with pytest.raises(InferenceServerException, match="which 2 models have") as refused:
                client.infer("shared", [tensor])
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        index = json.loads(read(f"http://{server.http_url}/v2/repository/index", "POST"))
        assert [entry["name"] for entry in index] == ["of_one", "shared", "of_two", "shared"]
        metrics = read(f"http://{HOST}:{server.metrics_port}/metrics")
        for place, count in zip(places, ("0.0", "1.0"), strict=True):
            labels = f'model="shared",namespace="{place}",version="1"'
            assert f"nv_inference_request_success{{{labels}}} {count}\n" in metrics
        assert f"model {places[1]}::shared version 1 is READY" in server.log()
        assert server.stop() == 0
