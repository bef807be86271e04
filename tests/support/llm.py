"""A model that generates text on fake devices, and clients of it.

Its next token is a hash of all tokens before it, so a text tells whether its state was right.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from tests.support.fake_device import FakeDevices
from tritrio.actors._model_services import ModelServices
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors._worker_threads import RunInThread
from tritrio.actors.inference import submit
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.rate_limiter import RateLimiter
from tritrio.actors.reply import Reply
from tritrio.backends.base import Batch, InstancePlace, ModelInstance, ModelSource
from tritrio.backends.llm.configuration import completed
from tritrio.backends.llm.steps import (
    EngineLimits,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenChoice,
)
from tritrio.protocol.errors import RequestError
from tritrio.protocol.llm_codec import llm_request_inputs, read_llm_outputs
from tritrio.protocol.llm_tensors import LlmChoice, LlmRequest
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.sampling_params import SamplingParams
from tritrio.testing.fake_device import at_once

STEP_S: Final = 1 / 64
TOKEN_S: Final = 1 / 1024
"""What a step takes, and each token of a prompt in it: exact in binary."""

END: Final = 0
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz. "
VOCABULARY: Final[list[bytes]] = [b"", *(letter.encode() for letter in LETTERS), b"\xc3", b"\xa9"]
"""Token -> its bytes; the last two make one character together."""


def seconds_of_step(plan: StepPlan) -> float:
    """What a step takes; nothing if it only forgets texts."""
    if not (plan.decodes or plan.prefills):
        return 0.0
    return STEP_S + TOKEN_S * sum(len(part.tokens) for part in plan.prefills)


class Letters:
    """The tokenizer: a token a letter."""

    vocabulary_size = len(VOCABULARY)
    end_tokens = frozenset({END})
    can_chat = False

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) + 1 for letter in text]

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        del skip_special_tokens  # the end token has no text
        return b"".join(VOCABULARY[token] for token in tokens).decode("utf-8", "replace")

    def stream(self, *, skip_special_tokens: bool = True) -> _LetterStream:
        del skip_special_tokens
        return _LetterStream()

    def token_text(self, token: int) -> str:
        return VOCABULARY[token].decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return VOCABULARY[token]

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        return "".join(message["content"] for message in messages)


class _LetterStream:
    def __init__(self) -> None:
        self._held = b""

    def push(self, token: int) -> str:
        held = self._held + VOCABULARY[token]
        cut = len(held) - held.endswith(b"\xc3")
        self._held = held[cut:]
        return held[:cut].decode("utf-8", "replace")

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


def next_token(tokens: Sequence[int], seed: int, *, ends: bool) -> int:
    """The token that follows: an end token only where that is allowed.

    Halves of characters only behind prompts that begin with a full stop.
    """
    number = zlib.crc32(bytes(tokens) + str(seed).encode())
    wide = VOCABULARY[tokens[0]] == b"."
    if wide and VOCABULARY[tokens[-1]] == b"\xc3" and number % 4:
        return len(VOCABULARY) - 1
    count = len(VOCABULARY) if wide else 1 + len(LETTERS)
    return number % count if ends else 1 + number % (count - 1)


def alone(prompt: str, max_tokens: int, *, seed: int = 0, ends: bool = False) -> str:
    """The text that the model generates with nothing else in the batch."""
    tokens = Letters().encode(prompt)
    start = len(tokens)
    while len(tokens) < start + max_tokens:
        token = next_token(tokens, seed, ends=ends)
        if token == END:
            break
        tokens.append(token)
    return Letters().decode(tokens[start:])


class FakeLlm:
    """A model instance; keeps the tokens of each row.

    Attributes:
      before: Called with each plan before it is done; may raise.
      plans: What it was told to do.
    """

    generates_tokens = True

    def __init__(self, name: str, limits: EngineLimits) -> None:
        self.name = name
        self.limits = limits
        self.text = Letters()
        self.sampling_defaults = SamplingParams()
        self.before: Callable[[StepPlan], None] = lambda _: None
        self.plans: list[StepPlan] = []
        self._rows: list[list[int]] = [[] for _ in range(limits.rows)]
        self._starts: dict[int, SequenceStart] = {}

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def execute(self, batch: Batch) -> None:
        raise AssertionError(f"it generates text: {batch}")

    def step(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.before(plan)
        rows, limits = self._rows, self.limits
        used = len(plan.decodes) + sum(len(part.tokens) for part in plan.prefills)
        assert used <= max(limits.step_tokens, len(plan.decodes) + 1)
        for left in plan.leaves:
            self._starts.pop(left, None)
        for start in plan.joins:
            assert start.id not in self._starts
            self._starts[start.id] = start
        for swap in plan.swaps:
            first, second = rows[swap.first], rows[swap.second]
            rows[swap.first] = second[: swap.second_tokens]
            rows[swap.second] = first[: swap.first_tokens]
        for each in plan.copies:
            assert len(rows[each.source]) >= each.tokens
            rows[each.target] = rows[each.source][: each.tokens]
        for row, kept in plan.idle_rows.items():
            del rows[row][kept:]
        parts: list[tuple[int, int, tuple[int, ...], int]] = [
            (part.sequence_id, part.row, (part.token,), part.past) for part in plan.decodes
        ]
        parts += [(part.sequence_id, part.row, part.tokens, part.past) for part in plan.prefills]
        assert len({row for _, row, _, _ in parts}) == len(parts)
        quiet = {part.sequence_id for part in plan.prefills if not part.samples}
        choices: dict[int, TokenChoice] = {}
        for sequence_id, row, tokens, past in parts:
            assert len(rows[row]) >= past
            rows[row] = [*rows[row][:past], *tokens]
            assert len(rows[row]) < limits.tokens_per_row
            if sequence_id not in quiet:
                choices[sequence_id] = self._choose(self._starts[sequence_id], rows[row])
        return StepResult(choices=choices, prefill_ns=1000, decode_ns=2000, sample_ns=500)

    def _choose(self, start: SequenceStart, tokens: list[int]) -> TokenChoice:
        params = start.params
        generated = len(tokens) - len(start.prompt)
        ends = not params.ignore_eos and generated >= params.min_tokens
        seed = start.seed if params.temperature else 0
        token = next_token(tokens, seed, ends=ends)
        if params.logprobs is None:
            return TokenChoice(token)
        return TokenChoice(token, logprob=-0.5, rank=1, top=((token, -0.5),))


LIMITS: Final = EngineLimits(
    rows=4,
    tokens_per_row=256,
    step_tokens=32,
    kv_bytes_per_token=10,
    kv_budget_bytes=10 * 4 * 256,
    end_tokens=frozenset({END}),
    prefix_caching=False,
    contiguous=False,
    vocabulary_size=len(VOCABULARY),
)


class FakeLlmBackend:
    """Makes such models, and remembers them."""

    name = "fake_llm"
    stacks_inputs = False
    cpu_instance_count = 1

    def __init__(self, limits: EngineLimits = LIMITS) -> None:
        self.limits = limits
        self.made: list[FakeLlm] = []
        self.at_load: Callable[[FakeLlm], None] = lambda _: None

    def complete_config(self, source: ModelSource, config: pb.ModelConfig) -> pb.ModelConfig:
        del source
        return completed(config)

    def create_instance(
        self, source: ModelSource, config: pb.ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        del source, config
        model = FakeLlm(place.name, self.limits)
        self.at_load(model)
        self.made.append(model)
        return model


def llm_request(
    prompt: str, *, number: int = 0, sampling: Any = None, **flags: Any
) -> InferRequest:
    """A request, by default for a stream of what the model generates, without an end."""
    flags = {"stream": True, "finish_reason": True, "num_output_tokens": True, **flags}
    flags.setdefault("exclude_input", flags["stream"])
    wanted = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **(sampling or {})}
    request = InferRequest("model")
    request.id = str(number)
    request.inputs = llm_request_inputs(LlmRequest(text=prompt, sampling=wanted, **flags))
    return request


class Reader:
    """Whoever waits for one request.

    Attributes:
      at_s: When each response came, in seconds since the start of what it reads from.
      choices: What each of them said.
      error: What ended it, if that was an error.
      ended_s: When it got the final response.
    """

    def __init__(self, reply: Reply, elapsed_s: Callable[[], float]) -> None:
        self.reply = reply
        self.at_s: list[float] = []
        self.choices: list[list[LlmChoice]] = []
        self.error: RequestError | None = None
        self.ended_s = -1.0
        self._elapsed_s = elapsed_s

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def texts(self) -> list[str]:
        """All that was generated, choice by choice."""
        return ["".join(each.text for each in parts) for parts in zip(*self.choices, strict=True)]

    @property
    def finish(self) -> str | None:
        return self.choices[-1][0].finish_reason

    async def read_one(self) -> bool:
        """Read a response; whether it was the last."""
        response = await self.reply.receive()
        if response.error is not None:
            self.error = response.error
        else:
            self.at_s.append(self._elapsed_s())
            self.choices.append(read_llm_outputs(response.outputs)[0])
        if response.final:
            self.ended_s = self._elapsed_s()
            self.reply.close()
        return response.final

    async def read(self, *, pause_s: float = 0.0) -> Reader:
        """Read all there is, with pauses in between."""
        while True:
            if await self.read_one():
                return self
            if pause_s:
                await trio.sleep(pause_s)


class LlmServed:
    """One version of such a model on fake devices."""

    def __init__(
        self, model: Model, backend: FakeLlmBackend, devices: FakeDevices, nursery: trio.Nursery
    ) -> None:
        self.model = model
        self.backend = backend
        self.devices = devices
        self.nursery = nursery
        self.start_s = trio.current_time()

    @property
    def llm(self) -> FakeLlm:
        return self.backend.made[-1]

    @property
    def statistics(self) -> Any:
        return self.model.version.statistics

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s

    def config(self, *, instances: int) -> pb.ModelConfig:
        """The configuration with another number of instances."""
        config = copy.deepcopy(self.model.version.config)
        config.instance_group[0].count = instances
        return config

    def submit(self, request: InferRequest) -> Reader:
        """Hand a request in, as a frontend does; whoever reads it is up to the test."""
        reply = submit(self.model.version, request, trio.current_time())
        return Reader(reply, self.elapsed_s)

    def ask(self, prompt: str, **more: Any) -> Reader:
        """Hand a request in and read all of it, in the background."""
        reader = self.submit(llm_request(prompt, **more))
        self.nursery.start_soon(reader.read)
        return reader

    async def submit_and_read(self, prompt: str, **more: Any) -> Reader:
        return await self.submit(llm_request(prompt, **more)).read()

    def stop_soon(self, drain_s: float) -> None:
        self.nursery.start_soon(self.model.stop, trio.current_time() + drain_s)

    @property
    def gauges(self) -> tuple[int, int, int]:
        """Texts with a row, texts that wait for one, and bytes of the state of texts."""
        totals = self.statistics.llm.totals()
        return totals.running, totals.waiting, totals.kv_used_bytes


@asynccontextmanager
async def serving_llm(
    *,
    drain_s: float = 60.0,
    instances: int = 1,
    config: pb.ModelConfig | None = None,
    backend: FakeLlmBackend | None = None,
    budget: RestartBudget | None = None,
    step_seconds: Callable[[StepPlan], float] = seconds_of_step,
    hang_s: float = float("inf"),
    rate_limiter: pb.ModelRateLimiter | None = None,
    limiter: RateLimiter | None = None,
    text_in_thread: RunInThread = at_once,
    **limits: Any,
) -> AsyncIterator[LlmServed]:
    """Serve one version on virtual time; at the end it drains and unloads."""
    backend = backend or FakeLlmBackend(replace(LIMITS, **limits))
    devices = FakeDevices(step_seconds=step_seconds)
    config = completed(config or pb.ModelConfig())
    config.name, config.backend = "model", backend.name
    config.instance_group = [
        pb.ModelInstanceGroup(
            name="model",
            count=instances,
            kind=pb.ModelInstanceGroupKind.CPU,
            rate_limiter=rate_limiter,
        )
    ]
    definition = ModelDefinition(
        source=ModelSource("model", 1, Path("/model"), Path("/model/1")),
        config=config,
        backend=backend,
        services=ModelServices(
            device_factory=devices,
            budget=budget or RestartBudget(),
            hang_s=hang_s,
            limiter=limiter,
            text_in_thread=text_in_thread,
        ),
    )
    model = Model(definition, report=lambda: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        yield LlmServed(model, backend, devices, nursery)
        await model.stop(trio.current_time() + drain_s)
