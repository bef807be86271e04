"""Whatever clients ask, and however it ends, the counters of every model agree with each other.

They never fall, and a client that has its answer finds it counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from tests.support.memory_server import DELAY_S, MemoryServer, memory_server, write_models
from tests.support.schedules import run_virtually
from tritrio.memory.cache_config import LocalConfig
from tritrio.protocol.errors import FailureReason
from tritrio.protocol.statistics import ModelStatistics

TICK_S = 1 / 64
CACHED_BYTES = 2**16
SECONDS = {"plain": 2 * TICK_S, "limited": TICK_S, "cached": 3 * TICK_S, "picky": TICK_S}
MODELS = ("plain", "limited", "cached", "picky", "wide")

PICKY = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Echoes; raises at a negative value."""

    def execute(self, requests):
        arrays = [
            pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests
        ]
        if any((array < 0).any() for array in arrays):
            raise ValueError("a negative value")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a)]) for a in arrays]
'''
WIDE_INPUT = 'input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]'
WIDE_OUTPUT = '{ name: "%s" data_type: TYPE_INT32 dims: [ -1 ] }'
WIDE_STEP = """step {
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "%s" }
}"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models "plain", "limited" (a queue of 2), "cached", "picky"; "wide", three at once."""
    root = write_models(tmp_path_factory.mktemp("counters"), only=("plain", "limited"))
    plain = (root / "plain" / "config.pbtxt").read_text()
    for name, text in (
        ("cached", plain + "response_cache { enable: true }"),
        ("picky", plain.replace("identity", "python")),
        (
            "wide",
            f'platform: "ensemble"\nmax_batch_size: 4\n{WIDE_INPUT}\noutput [ '
            + ", ".join(WIDE_OUTPUT % name for name in ("A", "B", "C"))
            + " ]\nensemble_scheduling { "
            + "".join(
                WIDE_STEP % pair for pair in (("cached", "A"), ("limited", "B"), ("picky", "C"))
            )
            + " }",
        ),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    (root / "picky" / "1" / "model.py").write_text(PICKY)
    return root


@dataclass(frozen=True)
class Ask:
    """One request; its client leaves `leave` ticks and a half after it, if at all."""

    at: int
    model: str
    value: int
    rows: int
    leave: int | None


ASKS = st.lists(
    st.builds(
        Ask,
        at=st.integers(0, 8),
        model=st.sampled_from(MODELS),
        value=st.integers(-1, 2),
        rows=st.integers(1, 5),  # five are more than any model takes
        leave=st.none() | st.integers(0, 4),
    ),
    min_size=1,
    max_size=12,
)


def numbers(statistics: ModelStatistics) -> dict[str, int]:
    """Every counter that must not fall."""
    found = {
        "inferences": statistics.inference_count,
        "executions": statistics.execution_count,
        **{f"failed {reason.value}": n for reason, n in statistics.failures.items()},
    }
    durations = {name: getattr(statistics, name) for name in DURATIONS}
    for rows, batch in statistics.batches.items():
        durations |= {f"{name} of {rows}": getattr(batch, name) for name in COMPUTE}
    for name, duration in durations.items():
        found |= {f"{name} count": duration.count, f"{name} ns": duration.ns}
    return found


COMPUTE = ("compute_input", "compute_infer", "compute_output")
DURATIONS = ("success", "fail", "queue", "cache_hit", "cache_miss", *COMPUTE)


def check(statistics: ModelStatistics) -> None:
    """What holds at every moment."""
    assert statistics.pending_count >= 0
    assert statistics.queue.count == statistics.success.count
    computed = statistics.success.count - statistics.cache_hit.count
    assert {getattr(statistics, name).count for name in COMPUTE} == {computed}
    assert statistics.fail.count == sum(statistics.failures.values())
    for name in COMPUTE:
        batches = [getattr(batch, name) for batch in statistics.batches.values()]
        assert sum(batch.count for batch in batches) == statistics.execution_count
    executed = sum(rows * b.compute_infer.count for rows, b in statistics.batches.items())
    assert executed >= statistics.inference_count >= computed
    assert statistics.success.ns >= statistics.queue.ns


class _Run:
    def __init__(self, server: MemoryServer, asks: list[Ask]) -> None:
        self._server = server
        self._asks = asks
        self.answered = Counter[tuple[str, bool]]()

    async def run(self) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch)
                async with trio.open_nursery() as clients:
                    for ask in self._asks:
                        clients.start_soon(self._client, ask)
                await trio.sleep(64 * TICK_S)
                scope.cancel()

    async def _client(self, ask: Ask) -> None:
        await trio.sleep_until(self._server.start_s + ask.at * TICK_S)
        client = self._server.http()
        limit_s = float("inf") if ask.leave is None else (ask.leave + 0.5) * TICK_S
        with trio.move_on_after(limit_s):
            answer = await client.ask(ask.model, [[ask.value]] * ask.rows)
            self.answered[ask.model, answer.status == 200] += 1
            for model in MODELS:
                statistics = self._server.statistics(model)
                assert statistics.success.count >= self.answered[model, True]
                assert statistics.fail.count >= self.answered[model, False]
        client.end.close()

    async def _watch(self) -> None:
        before: dict[str, dict[str, int]] = {model: {} for model in MODELS}
        while True:
            for model in MODELS:
                statistics = self._server.statistics(model)
                check(statistics)
                now = numbers(statistics)
                assert all(now[name] >= before[model][name] for name in before[model])
                before[model] = now
            await trio.sleep(TICK_S / 4)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(asks=ASKS, schedule=st.random_module())
def test_counters_agree_never_fall_and_are_there_before_the_answer(
    repository: Path, asks: list[Ask], schedule: object
) -> None:
    async def scenario() -> None:
        cache = LocalConfig(CACHED_BYTES)
        async with memory_server(repository, seconds=SECONDS, cache=cache) as server:
            run = _Run(server, asks)
            await run.run()
            for model in MODELS:
                statistics = server.statistics(model)
                assert statistics.pending_count == 0
                asked = sum(ask.model == model for ask in asks)
                ended = statistics.success.count + statistics.fail.count
                if model in {"plain", "wide"}:  # the others are asked by the ensemble as well
                    assert ended == asked
            wide = server.statistics("wide")
            assert wide.execution_count == wide.success.count

    run_virtually(scenario)


async def test_parallel_steps_add_up_and_each_ensemble_counts_once(
    autojump_clock: MockClock, repository: Path
) -> None:
    cache = LocalConfig(CACHED_BYTES)
    async with memory_server(repository, seconds=SECONDS, cache=cache) as server:
        for rows in ([[1]], [[2], [3]]):
            assert (await server.http().ask("wide", rows)).status == 200
        wide = server.statistics("wide")
        steps = [server.statistics(name) for name in ("cached", "limited", "picky")]
        assert (wide.success.count, wide.execution_count, wide.inference_count) == (2, 2, 3)
        assert list(wide.batches) == [1, 2]
        for name in COMPUTE:
            summed = sum(getattr(step, name).ns for step in steps)
            assert getattr(wide, name).ns == summed
            assert sum(getattr(batch, name).ns for batch in wide.batches.values()) == summed
        longest_s = max(SECONDS["cached"], SECONDS["limited"] + DELAY_S)
        assert wide.success.ns == 2 * longest_s * 10**9, "side by side, not one after the other"
        assert (await server.http().ask("wide", [[1]])).status == 200
        assert server.statistics("cached").cache_hit.count == 1
        assert server.statistics("cached").execution_count == 2
        assert wide.execution_count == 3


@pytest.mark.parametrize(
    ("rows", "others", "reason"),
    [
        ([[-1]], 0, FailureReason.BACKEND),
        ([[1]], 2, FailureReason.REJECTED),
        ([[1]] * 5, 0, FailureReason.OTHER),
    ],
)
async def test_an_ensemble_fails_for_the_reason_of_its_step(
    autojump_clock: MockClock,
    repository: Path,
    rows: list[list[int]],
    others: int,
    reason: FailureReason,
) -> None:
    """A step that raises, one whose queue is full, and a request that fits no step."""
    async with memory_server(repository, seconds=SECONDS | {"limited": 1.0}) as server:
        busy = [server.http() for _ in range(others + bool(others))]
        for client in busy:
            client.infer("limited", [[1]] * 4)
            await trio.testing.wait_all_tasks_blocked()
        assert (await server.http().ask("wide", rows)).status >= 400
        statistics = server.statistics("wide")
        assert {r: n for r, n in statistics.failures.items() if n} == {reason: 1}
        for client in busy:
            assert (await client.response()).status == 200
