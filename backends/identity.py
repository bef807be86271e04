"""The "identity" backend: answers each request with its own inputs, for tests and measurements.

`INPUT<i>` comes back as `OUTPUT<i>`; no element is copied. `parameters` of the configuration:
`execute_delay_ms` (the time each execution takes), `instance_wise_delay_multiplier` (instance i
takes i times as many of these as it says, but at least one) and `creation_delay_sec` (the time a
load takes). Each response carries four parameters, one of each type there is. The counter
`input_byte_size_counter`, with the labels model and version, is the bytes of all inputs.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final, final

from ..protocol.errors import invalid_argument
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse, Parameters
from ..protocol.tensors import Tensor
from .base import Batch, InstancePlace, ModelInstance, ModelSource
from .metric_store import MetricKind, Metrics, labels_of
from .model_outputs import OutputForm, forms_of, names_asked_for
from .parameters import number_parameter
from .testing_models import DELAY_MAX_S, Pauses, execute_delay_s

MULTIPLIER_MAX: Final = 1000
"""Largest `instance_wise_delay_multiplier`: what it makes of a delay is bounded anyway."""

INPUT_BYTES: Final = "input_byte_size_counter"
"""The metric family of all identity models."""

RESPONSE_PARAMETERS: Final[Parameters] = {
    "param0": "an example string parameter",
    "param1": 42,
    "param2": False,
    "param3": 123.123,
}


@final
class IdentityBackend:
    """Makes identity models; see the module docstring."""

    name = "identity"
    stacks_inputs = False
    cpu_instance_count = 1

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:  # noqa: ARG002 - nothing in the files tells more
        """Return the configuration as it is."""
        return config

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new instance."""
        return IdentityInstance(source, config, place)


@final
class IdentityInstance:
    """One identity model, on its thread."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._place = place
        self._version = str(source.version)
        self._labels = labels_of({"model": source.name, "version": self._version})
        self._metrics: Metrics | None = None
        self._delay_s = 0.0
        self._outputs: dict[str, OutputForm] = {}  # input name -> its output
        self._pauses = Pauses()

    def load(self) -> None:
        """Check names and data types, then wait as configured.

        Raises:
          RequestError: inputs and outputs are no pairs, a parameter is no number, or there is no
            room for a metric.
        """
        config = self._config
        forms = forms_of(ModelSpec.from_config(config, self._source.version))
        self._outputs = {name: forms[output] for name, output in pair_names(config).items()}
        self._delay_s = min(execute_delay_s(config) * self._delay_factor(), DELAY_MAX_S)
        self._make_counter()
        seconds = range(DELAY_MAX_S + 1)
        self._pauses.wait(number_parameter(config, "creation_delay_sec", seconds, 0))

    def execute(self, batch: Batch) -> None:
        """Answer every request with its inputs."""
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        if self._delay_s:
            self._pauses.wait(self._delay_s, batch.requests)
        batch.infer_end_ns = perf_counter_ns()
        for index, request in enumerate(batch.requests):
            batch.respond(index, self._echo(request))
        if self._metrics is not None:
            inputs = [tensor for request in batch.requests for tensor in request.inputs.values()]
            byte_size = sum([tensor.byte_size for tensor in inputs])
            self._metrics.increment(INPUT_BYTES, self._labels, byte_size)
        batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """Nothing was taken."""

    def _make_counter(self) -> None:
        server = self._place.server
        if server is None:
            return
        try:
            server.metrics.declare(INPUT_BYTES, "Bytes of all inputs", MetricKind.COUNTER)
            server.metrics.add(self._place.number, INPUT_BYTES, self._labels, ())
        except ValueError as error:
            raise invalid_argument(f"model '{self._config.name}': {error}") from None
        self._metrics = server.metrics

    def _delay_factor(self) -> int:
        allowed = range(MULTIPLIER_MAX + 1)
        multiplier = number_parameter(self._config, "instance_wise_delay_multiplier", allowed, 0)
        number = self._place.name.rpartition("_")[2]
        return max(1, multiplier * int(number)) if number.isdigit() else 1

    def _echo(self, request: InferRequest) -> InferResponse:
        asked = names_asked_for(request)
        outputs: list[Tensor] = []
        for tensor in request.inputs.values():
            form = self._outputs.get(tensor.name)
            if form is None:  # a sequence control
                continue
            if asked is None or form.name in asked:
                shape = form.to_client(tensor.shape)
                raw = tensor.given_raw
                array = tensor.array.reshape(shape) if raw is None else None
                outputs.append(Tensor(form.name, tensor.datatype, shape, raw=raw, array=array))
        response = InferResponse(self._source.name, self._version, request.id, outputs)
        response.parameters = RESPONSE_PARAMETERS.copy()
        return response


def pair_names(config: ModelConfig) -> dict[str, str]:
    """Return input name -> output name of an identity model.

    Raises:
      RequestError: an input is not named `INPUT<i>`, or there is no `OUTPUT<i>` of its data type,
        or there are other outputs.
    """
    datatypes = {tensor.name: tensor.data_type for tensor in config.output}
    pairs: dict[str, str] = {}
    for tensor in config.input:
        name = f"OUTPUT{tensor.name.removeprefix('INPUT')}"
        if not tensor.name.startswith("INPUT") or datatypes.pop(name, None) != tensor.data_type:
            raise invalid_argument(
                f"model '{config.name}': an identity model pairs each input 'INPUT<i>' with an "
                f"output 'OUTPUT<i>' of the same data_type, got input '{tensor.name}' without one"
            )
        pairs[tensor.name] = name
    if datatypes:
        raise invalid_argument(
            f"model '{config.name}': an identity model pairs each output 'OUTPUT<i>' with an "
            f"input 'INPUT<i>', got output '{next(iter(datatypes))}' without one"
        )
    return pairs
