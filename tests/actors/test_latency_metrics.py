"""Summaries, histograms and latency counters in the metrics text, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from tests.support.grpc_client import OK, infer_message
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tritrio.actors.metrics_collector import render
from tritrio.memory.cache_config import LocalConfig
from tritrio.options import ServerOptions
from tritrio.protocol.latency_window import WINDOW_S
from tritrio.protocol.metrics_config import FIRST_RESPONSE_FAMILY
from tritrio.server import StartError, core_options

SUMMARIES = [
    "nv_inference_request_summary_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us",
    "nv_inference_compute_output_summary_us",
]
LATENCY_COUNTERS = [name.replace("summary", "duration") for name in SUMMARIES]


def families(server: MemoryServer) -> dict[str, Any]:
    text = render(server.parts.metrics).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(server: MemoryServer, family: str, model: str) -> dict[str, float]:
    """Suffix and quantile or bound -> value of a family of one model."""

    def found() -> Iterator[tuple[str, float]]:
        for sample in families(server)[family].samples:
            labels = dict(sample.labels)
            if labels.pop("model") == model:
                assert labels.pop("version") == "1"
                suffix = sample.name.removeprefix(family).removesuffix("_total")  # the parser's
                yield ":".join([suffix, *labels.values()]), sample.value

    return dict(found())


async def test_summaries_hold_the_quantiles_of_the_last_minute(
    autojump_clock: MockClock, models: Path
) -> None:
    config = ("summary_latencies=true", "summary_quantiles=0.5:0.05,1:0,0.9:0.01")
    async with memory_server(models, seconds={"plain": 0.5}, metrics_config=config) as server:
        client = server.http()
        for seconds in (0.5, 2.0, 1.0):
            server.seconds["plain"] = seconds
            assert (await client.ask("plain", [[1]])).status == 200
        assert samples(server, SUMMARIES[0], "plain") == {
            ":0.5": 10**6,
            ":1": 2 * 10**6,
            ":0.9": 2 * 10**6,
            "_count": 3,
            "_sum": 3_500_000,
        }
        assert samples(server, SUMMARIES[1], "plain")["_sum"] == 0
        await trio.sleep(WINDOW_S - 1.0)  # the answer after half a second is too old now
        server.seconds["plain"] = 0.0
        assert samples(server, SUMMARIES[0], "plain")[":0.5"] == 10**6
        await trio.sleep(WINDOW_S)
        found = samples(server, SUMMARIES[0], "plain")
        assert all(isnan(found[key]) for key in (":0.5", ":0.9", ":1"))
        assert (found["_count"], found["_sum"]) == (3, 3_500_000)


async def test_time_in_the_queue_is_in_its_own_summary(
    autojump_clock: MockClock, models: Path
) -> None:
    config = ("summary_latencies=true", "summary_quantiles=0:0,1:0")
    async with memory_server(models, seconds={"plain": 0.5}, metrics_config=config) as server:
        clients = [server.http() for _ in range(3)]
        for client in clients:
            client.infer("plain", [[1]])
        for client in clients:
            assert (await client.response()).status == 200
        queue, request = (samples(server, name, "plain") for name in (SUMMARIES[1], SUMMARIES[0]))
        assert (queue[":0"], queue[":1"], queue["_sum"]) == (0, 10**6, 1_500_000)
        assert (request[":0"], request[":1"], request["_sum"]) == (500_000, 1_500_000, 3 * 10**6)


async def test_every_model_has_summaries_from_the_start(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, metrics_config=("summary_latencies=true",)) as server:
        assert set(SUMMARIES) <= set(families(server))
        for model in ("batched", "plain", "limited", "repeat"):
            for name in SUMMARIES:
                found = samples(server, name, model)
                assert {key: value for key, value in found.items() if not isnan(value)} == {
                    "_count": 0,
                    "_sum": 0,
                }
                assert set(found) == {
                    ":0.5",
                    ":0.9",
                    ":0.95",
                    ":0.99",
                    ":0.999",
                    "_count",
                    "_sum",
                }


async def test_a_cached_model_has_summaries_of_look_ups_in_place_of_requests(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    write_models(tmp_path, only=("plain", "batched"))
    config_file = tmp_path / "plain" / "config.pbtxt"
    config_file.write_text(config_file.read_text() + "response_cache { enable: true }")
    config = ("summary_latencies=true", "summary_quantiles=0:0,1:0")
    options: dict[str, Any] = {"cache": LocalConfig(2**20), "metrics_config": config}
    async with memory_server(tmp_path, seconds={"plain": 0.5}, **options) as server:
        client = server.http()
        for value in (1, 1, 2):
            assert (await client.ask("plain", [[value]])).status == 200
        assert samples(server, SUMMARIES[0], "plain") == {}
        assert samples(server, SUMMARIES[0], "batched")["_count"] == 0
        assert samples(server, "nv_cache_hit_summary_per_model", "batched") == {}
        hits, misses, queue, infer = (
            samples(server, name, "plain")
            for name in (
                "nv_cache_hit_summary_per_model",
                "nv_cache_miss_summary_per_model",
                SUMMARIES[1],
                SUMMARIES[3],
            )
        )
        assert (hits["_count"], misses["_count"]) == (1, 2)
        assert hits[":1"] == hits["_sum"]
        assert 0 <= misses[":0"] <= misses[":1"] <= misses["_sum"]
        assert (queue["_count"], infer["_count"]) == (3, 2)


async def test_counters_of_durations_can_be_switched_off_and_others_stay(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, metrics_config=("counter_latencies=false",)) as server:
        assert await server.grpc().infer("plain", [[1]]).done() == OK
        assert not set(LATENCY_COUNTERS) & set(families(server))
        assert samples(server, "nv_inference_request_success", "plain") == {"": 1}
        assert samples(server, "nv_inference_exec_count", "plain") == {"": 1}


async def test_first_responses_are_shown_of_decoupled_models_only(
    autojump_clock: MockClock, models: Path
) -> None:
    config = ("histogram_latencies=true",)
    async with memory_server(models, seconds={"repeat": 0.25}, metrics_config=config) as server:
        assert samples(server, FIRST_RESPONSE_FAMILY, "plain") == {}
        assert families(server)[FIRST_RESPONSE_FAMILY].type == "histogram"
        stream = server.grpc().stream()
        stream.send(infer_message("repeat", [[7, 1], [8, 1]]))
        stream.half_close()
        assert await stream.done() == OK
        assert samples(server, FIRST_RESPONSE_FAMILY, "repeat") == {
            "_bucket:100": 0,
            "_bucket:500": 1,
            "_bucket:2000": 1,
            "_bucket:5000": 1,
            "_bucket:+Inf": 1,
            "_sum": 250,
            "_count": 1,
        }


def test_settings_that_are_none_end_the_start() -> None:
    options = ServerOptions(model_repositories=(), metrics_config=("summary=true",))
    with pytest.raises(StartError, match="--metrics-config: expected one of the settings"):
        core_options(options)


def test_what_is_no_quantile_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    core_options(ServerOptions(model_repositories=(), metrics_config=("summary_quantiles=1",)))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.message.startswith("--metrics-config summary_quantiles: '1' is skipped")
