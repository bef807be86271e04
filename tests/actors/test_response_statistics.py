"""What is counted of each response of a decoupled model, and when the first one comes."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import Served, model_config, serving
from tests.support.ensembles import Function, ensemble, model, served, step
from tests.support.fake_device import EchoBackend
from tritrio.backends.base import Batch
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.metrics_config import FIRST_RESPONSE_FAMILY, MetricsConfig
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.statistics import ModelStatistics

NAMES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
MS = 1_000_000


def counted(statistics: ModelStatistics) -> dict[int, dict[str, tuple[int, int]]]:
    """Index -> name -> (count, nanoseconds) of what is not zero."""
    durations = {
        index: {name: getattr(response, name) for name in NAMES}
        for index, response in statistics.responses.items()
    }
    return {
        index: {
            name: (duration.count, duration.ns)
            for name, duration in named.items()
            if (duration.count, duration.ns) != (0, 0)
        }
        for index, named in durations.items()
    }


def part(*, final: bool = False, empty: bool = False, fails: bool = False) -> InferResponse:
    error = RequestError(ErrorCode.INTERNAL, "asked to fail") if fails else None
    response = InferResponse("model", "1", "", error=error, final=final)
    response.empty = empty
    return response


def keeping() -> tuple[EchoBackend, list[Batch]]:
    """A backend that leaves the answers to the test, and the batches it got."""
    backend, kept = EchoBackend(), list[Batch]()

    def before(batch: Batch) -> bool:
        kept.append(batch)
        return True

    backend.before = before
    return backend, kept


async def respond(batch: Batch, after_s: float, response: InferResponse) -> None:
    await trio.sleep(after_s)
    batch.respond(0, response)
    await wait_all_tasks_blocked()


async def test_each_response_counts_from_the_one_before_it(autojump_clock: MockClock) -> None:
    backend, kept = keeping()
    async with serving(model_config(decoupled=True), backend=backend) as server:
        reply = server.submit(0)
        await wait_all_tasks_blocked()
        await respond(kept[0], 0.5, part())
        assert counted(server.version.statistics)[0]["success"] == (1, 500 * MS)
        assert reply.has_response, "it is counted before it can be received"
        await respond(kept[0], 0.25, part(fails=True))
        await respond(kept[0], 0.0, part())
        await respond(kept[0], 1.0, part(final=True, empty=True))
        statistics = server.version.statistics
        assert counted(statistics) == {
            0: {"compute_infer": (1, 500 * MS), "compute_output": (1, 0), "success": (1, 500 * MS)},
            1: {"compute_infer": (1, 250 * MS), "compute_output": (1, 0), "fail": (1, 250 * MS)},
            2: {"compute_infer": (1, 0), "compute_output": (1, 0), "success": (1, 0)},
            3: {"compute_infer": (1, 1000 * MS), "empty_response": (1, 1000 * MS)},
        }
        assert (statistics.success.count, statistics.success.ns) == (1, 1750 * MS)
        reply.close()


async def test_time_in_the_queue_is_none_of_a_response(autojump_clock: MockClock) -> None:
    backend, kept = keeping()
    async with serving(model_config(decoupled=True), backend=backend, seconds=1.0) as server:
        replies = [server.submit(number) for number in range(2)]
        await trio.sleep(2.5)  # the first one executes for a second, then the second one
        assert len(kept) == 2
        for batch in kept:
            await respond(batch, 0.0, part(final=True))
        # 2.5 s after the dispatch at 0, and 1.5 s after the dispatch at 1
        assert counted(server.version.statistics)[0]["success"] == (2, 4000 * MS)
        for reply in replies:
            reply.close()


async def test_a_cancelled_request_counts_at_the_response_that_it_did_not_get(
    autojump_clock: MockClock,
) -> None:
    backend, kept = keeping()
    async with serving(model_config(decoupled=True), backend=backend) as server:
        reply = server.submit(0)
        await wait_all_tasks_blocked()
        await respond(kept[0], 0.5, part())
        await trio.sleep(0.25)
        reply.close()
        assert counted(server.version.statistics)[1] == {"cancel": (1, 250 * MS)}
        await respond(kept[0], 0.0, part(final=True))
        assert list(counted(server.version.statistics)) == [0, 1], "what nobody gets is not counted"


async def test_models_with_one_response_a_request_count_none(autojump_clock: MockClock) -> None:
    async with serving(model_config()) as server:
        await server.ask(0)
        assert server.version.statistics.responses == {}
        assert server.version.statistics.first_response is None


def histogram(server: Served) -> tuple[list[int], float]:
    found = server.version.statistics.first_response
    assert found is not None
    return found.counts, found.sum


async def test_the_first_response_is_in_its_bucket_and_no_other_one_is(
    autojump_clock: MockClock,
) -> None:
    backend, kept = keeping()
    config = model_config(decoupled=True)
    metrics = MetricsConfig(histogram_latencies=True)
    async with serving(config, backend=backend, metrics=metrics) as server:
        for number, first_s in enumerate([0.0, 0.125, 0.5, 4.0, 8.0]):
            reply = server.submit(number)
            await wait_all_tasks_blocked()
            await respond(kept[number], first_s, part())
            await respond(kept[number], 2.0, part())
            await respond(kept[number], 0.0, part(final=True, empty=True))
            reply.close()
        assert histogram(server) == ([1, 2, 0, 1, 1], 12_625.0)
        server.submit(9)
        await wait_all_tasks_blocked()
        await respond(kept[-1], 0.0, part(final=True, empty=True))
        assert histogram(server) == ([1, 2, 0, 1, 1], 12_625.0), "a bare end is no response"


async def test_a_model_chooses_its_buckets(autojump_clock: MockClock) -> None:
    backend, kept = keeping()
    config = model_config(decoupled=True)
    control = pb.ModelMetricsMetricControl(
        metric_identifier=pb.ModelMetricsMetricControlMetricIdentifier(
            family=FIRST_RESPONSE_FAMILY
        ),
        histogram_options=pb.ModelMetricsMetricControlHistogramOptions(buckets=[1.0, 250.0]),
    )
    config.model_metrics = pb.ModelMetrics(metric_control=[control])
    metrics = MetricsConfig(histogram_latencies=True)
    async with serving(config, backend=backend, metrics=metrics) as server:
        server.submit(0)
        await wait_all_tasks_blocked()
        await respond(kept[0], 0.25, part(final=True))
        assert histogram(server) == ([0, 1, 0], 250.0)


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_responses_of_a_decoupled_ensemble_count_as_those_of_a_model(
    autojump_clock: MockClock, number: int
) -> None:
    configs = [
        model("count", decoupled=True),
        ensemble("e", [step("count", {"IN": "X"}, {"OUT": "Y"})], decoupled=True),
    ]
    functions = {"count": lambda inputs, _: [{"OUT": [each]} for each in range(inputs["IN"][0])]}
    async with served(configs, functions, seconds={"count": 0.5}) as world:
        responses = await world.responses(world.submit("e", {"X": [number]}))
        totals = {
            index: {name: count for name, (count, _) in durations.items()}
            for index, durations in counted(world.versions["e"].statistics).items()
        }
        answered = {"compute_infer": 1, "compute_output": 1, "success": 1}
        assert totals == {
            index: {"compute_infer": 1, "empty_response": 1} if response.empty else answered
            for index, response in enumerate(responses)
        }
        spent_ns = sum(
            durations["compute_infer"][1]
            for durations in counted(world.versions["e"].statistics).values()
        )
        assert spent_ns == world.versions["e"].statistics.success.ns == 500 * MS


async def test_a_cancelled_request_of_a_decoupled_ensemble_counts_as_one_of_a_model(
    autojump_clock: MockClock,
) -> None:
    configs = [
        model("count", decoupled=True),
        model("add"),
        ensemble(
            "e",
            [step("count", {"IN": "X"}, {"OUT": "t"}), step("add", {"IN": "t"}, {"OUT": "Y"})],
            decoupled=True,
        ),
    ]
    functions: dict[str, Function] = {
        "count": lambda inputs, _: [{"OUT": [each]} for each in range(inputs["IN"][0])],
        "add": lambda inputs, _: {"OUT": inputs["IN"]},
    }
    async with served(configs, functions, seconds={"add": 0.5}) as world:
        reply = world.submit("e", {"X": [1]})
        await trio.sleep(0.25)
        reply.close()
        assert counted(world.versions["e"].statistics) == {0: {"cancel": (1, 250 * MS)}}
        assert list(counted(world.versions["count"].statistics)) == [0, 1]
