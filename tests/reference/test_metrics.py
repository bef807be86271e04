"""The metrics of the same models after the same requests: families, types, labels and counts."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from . import grpc_exchange
from .cases import Case
from .grpc_requests import repeat, stream
from .http_answer_cases import fault
from .http_exchange import Http, exchange
from .http_requests import infer, tensor
from .repository import MODELS
from .servers import COMPLETE, HOST, Server, Servers, both

READ_ATTEMPTS_MAX = 400
"""The reference counts a request after it has answered it, and looks at some gauges at times."""
LIMIT_S = 10.0
QUANTILES = "summary_quantiles=0.5:0.05,bad,0.99:0.001"
SETTINGS = ("summary_latencies=true", "histogram_latencies=true", QUANTILES)
CACHE_FLAG = "--cache-config=local,size=1048576"

TAGS = 'metric_tags { key: "team" value: "say \\"hi\\"" }\n'
CACHED = "response_cache { enable: true }\n"
BOTH = """
platform: "ensemble"
max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: [-1] }
output { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling { step [
  { model_name: "identity" model_version: -1
    input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "X" } },
  { model_name: "cached" model_version: -1
    input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "Y" } }
] }
"""

LATER: Final = {"nv_model_load_duration_secs", "nv_inference_first_response_histogram_ms"}
"""Families that later releases have."""
METRICS_ROW: Final = "metrics"
"""The row of docs/compatibility.md that says where metrics differ."""
REFUSED: Final = {("faults", "OTHER"): 1}
"""Failures that only we count: a request that is refused before it reaches its model."""


def write_repository(directory: Path) -> None:
    for name, origin, more in (
        ("identity", "identity", TAGS),
        ("cached", "counted", CACHED),
        ("faults", "faults", ""),
        ("repeat", "repeat", ""),
    ):
        source, config, _ = MODELS[origin]
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "1" / "model.py").write_text(source)
        (directory / name / "config.pbtxt").write_text(config + more)
    (directory / "both" / "1").mkdir(parents=True)
    (directory / "both" / "config.pbtxt").write_text(BOTH)


@dataclass(frozen=True, slots=True)
class Scraped:
    """What the metrics port of one server says.

    Attributes:
      text: All of it.
      families: Name -> family.
    """

    text: str
    families: dict[str, Metric]

    def values(self, family: str) -> dict[frozenset[tuple[str, str]], float]:
        """Labels -> value of each sample that has the name of its family."""
        return {
            frozenset(sample.labels.items()): sample.value
            for sample in self.families[family].samples
            if sample.name.removesuffix("_total") == family
        }

    def labelled(self, family: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        """Name and labels of each sample."""
        samples = self.families[family].samples
        return {(sample.name, frozenset(sample.labels.items())) for sample in samples}


def ask(server: Server, method: str, path: str) -> tuple[int, str | None, bytes]:
    """Status, content type and body of an answer of the metrics port."""
    connection = http.client.HTTPConnection(HOST, server.ports.metrics, timeout=LIMIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read()
    finally:
        connection.close()


def scrape(server: Server) -> Scraped:
    text = ask(server, "GET", "/metrics")[2].decode().replace(" Nan\n", " NaN\n")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return Scraped(text, families)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The reference and ours, with everything measured, after the same requests."""
    repository = tmp_path_factory.mktemp("metrics") / "models"
    write_repository(repository)
    flags = [f"--metrics-config={setting}" for setting in SETTINGS]
    with both(repository, *COMPLETE, CACHE_FLAG, "--metrics-interval-ms=200", *flags) as servers:
        for server in (servers.ours, servers.reference):
            send_requests(server)
        yield servers


def rows(model: str, *values: int) -> Http:
    name = "A" if model == "both" else "INPUT0"
    body = {"inputs": [tensor(name, "FP32", list(values), [len(values), 1])]}
    if model == "cached":  # as the ensemble's step does, or else our cache has two entries
        body["outputs"] = [{"name": "OUTPUT0"}]
    return infer(body, model)


def send_requests(server: Server) -> None:
    """Requests of every kind, and wait until they are counted."""
    for request, status in (
        (rows("identity", 1), 200),
        (rows("identity", 1, 2, 3), 200),
        (rows("cached", 1), 200),
        (rows("cached", 1), 200),
        (rows("both", 1), 200),
        (rows("both", 5), 200),
        (fault("ok"), 200),
        (fault("raise"), 500),
        (infer({"inputs": []}, "faults"), 400),
    ):
        assert exchange(server, Case("a request", request, status)).status == status
    call = stream(repeat([5, 6]), repeat([]))
    assert grpc_exchange.exchange(server, Case("responses", call, "OK")).status == "OK"
    for _ in range(READ_ATTEMPTS_MAX):
        seen = scrape(server)
        successes = sum(seen.values("nv_inference_request_success").values())
        (busy,) = seen.values("nv_cpu_utilization").values()
        (entries,) = seen.values("nv_cache_num_entries").values()
        if successes == 13 and busy > 0 and entries == 2:
            return
    pytest.fail(f"not all requests were counted:\n{seen.text}")


@pytest.mark.reference
def test_families_have_the_same_names_and_types(servers: Servers) -> None:
    reference, ours = ({n: f.type for n, f in scrape(s).families.items()} for s in servers)
    assert {name: kind for name, kind in ours.items() if name not in LATER} == reference
    assert {ours[name] for name in LATER} == {"gauge", "histogram"}
    for server in servers:
        text = scrape(server).text
        assert set(re.findall(r"^# HELP (\S+) .", text, re.MULTILINE)) >= set(reference)


@pytest.mark.reference
def test_samples_have_the_same_names_and_labels(servers: Servers) -> None:
    reference, ours = map(scrape, servers)
    for family in reference.families:
        assert ours.labelled(family) == reference.labelled(family)


@pytest.mark.reference
def test_counts_are_the_same(servers: Servers) -> None:
    reference, ours = map(scrape, servers)
    for family in (
        "nv_inference_request_success",
        "nv_inference_count",
        "nv_inference_exec_count",
        "nv_inference_pending_request_count",
        "nv_cache_num_hits_per_model",
        "nv_cache_num_misses_per_model",
        "nv_cache_num_entries",
        "nv_cache_num_lookups",
        "nv_cache_num_hits",
        "nv_cache_num_misses",
        "nv_cache_num_evictions",
        "nv_cpu_memory_total_bytes",
    ):
        assert ours.values(family) == reference.values(family), family
    failures = "nv_inference_request_failure"
    more = {
        labels: count - reference.values(failures)[labels]
        for labels, count in ours.values(failures).items()
    }
    by_name = {(dict(labels)["model"], dict(labels)["reason"]): n for labels, n in more.items()}
    assert {name: count for name, count in by_name.items() if count} == REFUSED


@pytest.mark.reference
def test_summaries_count_the_same_and_add_up_to_the_counters(servers: Servers) -> None:
    reference, ours = map(scrape, servers)
    for family, metric in ours.families.items():
        if metric.type != "summary":
            continue
        counts, sums = (
            [
                {
                    frozenset(sample.labels.items()): sample.value
                    for sample in seen.families[family].samples
                    if sample.name == family + suffix
                }
                for seen in (reference, ours)
            ]
            for suffix in ("_count", "_sum")
        )
        assert counts[1] == counts[0], family
        for seen, summed in zip((reference, ours), sums, strict=True):
            counters = seen.values(family.replace("_summary", "_duration"))
            assert summed == {labels: counters[labels] for labels in summed}


@pytest.mark.reference
def test_the_machine_is_measured_alike(servers: Servers) -> None:
    for seen in map(scrape, servers):
        (used,) = seen.values("nv_cpu_memory_used_bytes").values()
        (total,) = seen.values("nv_cpu_memory_total_bytes").values()
        (busy,) = seen.values("nv_cpu_utilization").values()
        assert 0 < used < total
        assert 0 < busy <= 1


PORT = [
    ("GET", "/metrics", 200),
    ("GET", "/metrics/", 200),
    ("GET", "/metrics?a=b", 200),
    ("GET", "/", 200),
    ("GET", "/metric", 200),
    ("GET", "/v2/health/ready", 200),
    ("POST", "/metrics", 405),
    ("HEAD", "/metrics", 405),
    ("DELETE", "/other", 405),
]


@pytest.mark.reference
@pytest.mark.parametrize(("method", "path", "status"), PORT)
def test_the_port_answers_alike(method: str, path: str, status: int, servers: Servers) -> None:
    (_, kind, theirs), (_, our_kind, ours) = answers = [ask(s, method, path) for s in servers]
    assert [answer[0] for answer in answers] == [status, status]
    if status == 200:
        assert kind == our_kind == "text/plain; charset=utf-8"
        assert bool(ours) == bool(theirs) == path.startswith("/metrics")
    else:
        assert (kind, our_kind) == ("text/plain", "application/json")
        assert ours == theirs


@pytest.mark.reference
def test_the_reference_has_a_pool_of_pinned_memory_that_nothing_uses(servers: Servers) -> None:
    reference, ours = map(scrape, servers)
    total, used = (f"nv_pinned_memory_pool_{what}_bytes" for what in ("total", "used"))
    assert [list(seen.values(total).values()) for seen in (reference, ours)] == [[2**28], [0]]
    assert [list(seen.values(used).values()) for seen in (reference, ours)] == [[0], [0]]
