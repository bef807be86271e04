"""The metrics text says what the statistics say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.grpc_client import OK
from tests.support.http_client import request_bytes
from tests.support.memory_server import MemoryServer, memory_server
from tritrio.actors.metrics_collector import SAMPLES_A_TURN, ModelCollector, render, render_in_turns
from tritrio.protocol.errors import FailureReason
from tritrio.protocol.statistics import ModelStatistics

SAMPLE = re.compile(r"^(nv_\w+)\{(.*)\} (\S+)$", re.MULTILINE)


def samples(server: MemoryServer, model: str) -> dict[str, float]:
    """Name (and reason) -> value of everything about one model."""
    found: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(render(server.parts.metrics).decode()):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if label.pop("model") == model:
            assert label.pop("version") == "1"
            found[":".join([name, *label.values()])] = float(value)
    return found


async def test_metrics_equal_the_statistics(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, seconds={"plain": 0.5}) as server:
        grpc, http, leaver = server.grpc(), server.http(), server.http()
        assert await grpc.infer("plain", [[1], [2]]).done() == OK
        assert (await http.ask("plain", [[1]] * 5)).status == 400
        http.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        leaver.infer("plain", [[2]])
        await wait_all_tasks_blocked()
        leaver.end.close()
        grpc.infer("plain", [[3]])
        await wait_all_tasks_blocked()
        assert samples(server, "plain")["nv_inference_pending_request_count"] == 1
        await http.response()
        found = samples(server, "plain")
        statistics = server.statistics("plain")
        name = "nv_inference_request_failure:"
        assert {key: found[key] for key in found if key.startswith(name)} == {
            f"{name}{reason.value}": {FailureReason.CANCELED: 1, FailureReason.OTHER: 1}.get(
                reason, 0
            )
            for reason in FailureReason
        }
        assert found["nv_inference_request_success"] == statistics.success.count == 2
        assert found["nv_inference_count"] == statistics.inference_count == 3
        assert found["nv_inference_exec_count"] == statistics.execution_count == 2
        assert found["nv_inference_request_duration_us"] == statistics.success.ns // 1000 == 10**6
        assert found["nv_inference_queue_duration_us"] == statistics.queue.ns // 1000 == 0
        for part in ("input", "infer", "output"):
            expected = getattr(statistics, f"compute_{part}").ns // 1000
            assert found[f"nv_inference_compute_{part}_duration_us"] == expected
        assert found["nv_model_load_duration_secs"] == 0.0


async def test_counters_have_no_suffix_and_every_family_a_header(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        text = render(server.parts.metrics).decode()
        names = set(re.findall(r"^(nv_\w+)[{ ]", text, re.MULTILINE))
        assert not [name for name in names if name.endswith("_total")]
        kinds = dict(re.findall(r"^# TYPE (nv_\w+) (\w+)$", text, re.MULTILINE))
        assert set(kinds) == names
        assert set(re.findall(r"^# HELP (nv_\w+) ", text, re.MULTILINE)) == names
        assert {name for name, kind in kinds.items() if kind == "gauge"} == {
            "nv_inference_pending_request_count",
            "nv_model_load_duration_secs",
            "nv_pinned_memory_pool_total_bytes",
            "nv_pinned_memory_pool_used_bytes",
        }
        assert set(kinds.values()) == {"gauge", "counter"}


@pytest.mark.parametrize("model", ["batched", "plain", "limited", "repeat"])
async def test_every_model_is_reported_from_the_start(
    autojump_clock: MockClock, models: Path, model: str
) -> None:
    async with memory_server(models) as server:
        found = samples(server, model)
        assert found["nv_inference_request_success"] == 0
        assert found["nv_inference_pending_request_count"] == 0


async def test_http_statistics_are_visible_before_the_response(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 0.5}) as server:
        client = server.http()
        for count in range(1, 4):
            assert (await client.ask("plain", [[1]])).status == 200
            assert samples(server, "plain")["nv_inference_request_success"] == count
            client.get("/v2/models/plain/stats")
            (statistics,) = (await client.response()).json["model_stats"]
            assert statistics["inference_stats"]["success"]["count"] == count


@dataclass
class Measured:
    """A model version, as the collector sees it."""

    name: str = "m"
    version: str = "1"
    metric_tags: dict[str, str] = field(default_factory=dict)
    namespace: str = ""
    load_duration_s: float = 0.0
    statistics: ModelStatistics = field(default_factory=ModelStatistics)


def labels_of(*models: Measured) -> list[dict[str, str]]:
    """The labels of each sample of one family, read back by Prometheus's own parser."""
    registry = CollectorRegistry()
    registry.register(ModelCollector(lambda: models))
    text = render(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return [sample.labels for sample in families["nv_inference_count"].samples]


@pytest.mark.parametrize("text", ['say "hi"', "a\nb", "a\\b", "a\\nb", "naïve \U0001f600", ""])
def test_any_text_is_read_back_as_the_name_and_the_tag_that_it_is(text: str) -> None:
    assert labels_of(Measured(name=text, metric_tags={"team": text})) == [
        {"model": text, "version": "1", "_team": text}
    ]


def test_a_tag_whose_name_is_no_label_spoils_no_scrape() -> None:
    (labels,) = labels_of(Measured(metric_tags={"a-b c": "x", "a_b_c": "y"}))
    assert labels == {"model": "m", "version": "1", "_a_b_c": "y"}


def test_models_of_namespaces_say_theirs_and_others_have_no_such_label() -> None:
    assert labels_of(Measured(namespace="one"), Measured(version="2")) == [
        {"model": "m", "version": "1", "namespace": "one"},
        {"model": "m", "version": "2"},
    ]


async def test_a_load_on_request_reports_as_one_at_the_start_and_an_unload_ends_it(
    autojump_clock: MockClock, models: Path
) -> None:
    options: dict[str, Any] = {"model_control": "explicit", "startup_models": ("plain",)}
    async with memory_server(models, **options) as server:
        client = server.http()

        async def control(model: str, what: str) -> None:
            client.send(request_bytes(f"/v2/repository/models/{model}/{what}", b"{}"))
            assert (await client.response()).status == 200
            await wait_all_tasks_blocked()

        def lines(model: str) -> list[str]:
            """The names and labels of everything about a model."""
            text = render(server.parts.metrics).decode()
            found = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
            named = f'model="{model}"'
            return sorted(line.replace(named, "model") for line in found if named in line)

        early = lines("plain")
        assert len(set(early)) == len(early) > 0
        assert lines("batched") == []
        for _ in range(2):  # the second time it replaces what is loaded
            await control("batched", "load")
            assert lines("batched") == early
        await control("batched", "unload")
        assert lines("batched") == []
        assert lines("plain") == early


async def test_a_scrape_of_many_models_lets_requests_go_on(autojump_clock: MockClock) -> None:
    models = [Measured(name=f"model {number}") for number in range(5 * SAMPLES_A_TURN)]
    registry = CollectorRegistry()
    registry.register(ModelCollector(lambda: models))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        text = await render_in_turns(registry)
        nursery.cancel_scope.cancel()
    assert text == render(registry)
    assert turns >= text.count(b"\n") / SAMPLES_A_TURN - 1


async def test_a_scrape_in_turns_has_families_without_samples_as_well(
    autojump_clock: MockClock,
) -> None:
    registry = CollectorRegistry()
    registry.register(ModelCollector(list))
    assert await render_in_turns(registry) == render(registry)
