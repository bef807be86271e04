"""Requests that a model makes, before they are sent."""

import json

import numpy as np
from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


def tensor():
    return pb_utils.Tensor("INPUT0", np.zeros((1, 2), np.float32))


def made(**members):
    given = {"inputs": [tensor()], "requested_output_names": ["OUTPUT0"], "model_name": "called"}
    return pb_utils.InferenceRequest(**{**given, **members})


def attempt(words=(), **members):
    return outcome(lambda: made(**members), words=words)


class TritonPythonModel(Sees):
    def see_defaults(self, request):
        one = made()
        return [
            one.request_id(),
            one.correlation_id(),
            one.flags(),
            one.timeout(),
            one.requested_output_names(),
            [item.name() for item in one.inputs()],
        ]

    def see_default_parameters(self, request):
        return json.loads(made().parameters() or "{}")

    def see_default_parameters_text(self, request):
        return made().parameters()

    def see_no_parameters_text(self, request):
        return made(parameters={}).parameters()

    def see_members(self, request):
        one = made(
            request_id="r",
            correlation_id=7,
            flags=3,
            timeout=5,
            model_version=1,
            parameters={"a": 1},
        )
        return [
            one.request_id(),
            one.correlation_id(),
            one.flags(),
            one.timeout(),
            json.loads(one.parameters()),
        ]

    def see_by_position(self, request):
        one = pb_utils.InferenceRequest("r", 7, [tensor()], ["OUTPUT0"], "called", 1, 1, 5)
        return [one.request_id(), one.correlation_id(), one.flags(), one.timeout()]

    def see_text_correlation_id(self, request):
        return made(correlation_id="seven").correlation_id()

    def see_largest_correlation_id(self, request):
        return made(correlation_id=2**64 - 1).correlation_id()

    def see_too_large_correlation_id(self, request):
        return attempt(correlation_id=2**64)

    def see_negative_correlation_id(self, request):
        return attempt(correlation_id=-1)

    def see_fractional_correlation_id(self, request):
        return attempt(correlation_id=1.5)

    def see_correlation_id_none(self, request):
        return attempt(correlation_id=None)

    def see_every_kind_of_parameter(self, request):
        return json.loads(made(parameters={"b": True, "i": 3, "t": "x"}).parameters())

    def see_large_parameter(self, request):
        return attempt(parameters={"i": 2**63 - 1})

    def see_too_large_parameter(self, request):
        return attempt(parameters={"i": 2**63})

    def see_negative_parameter(self, request):
        return json.loads(made(parameters={"i": -5}).parameters())

    def see_fractional_parameter(self, request):
        return attempt(parameters={"f": 1.5}, words=["float"])

    def see_list_parameter(self, request):
        return attempt(parameters={"l": [1]}, words=["list", "bool", "int", "str"])

    def see_none_parameter(self, request):
        return attempt(parameters={"n": None}, words=["bool", "int", "str"])

    def see_parameter_name_of_number(self, request):
        return attempt(parameters={1: "x"})

    def see_parameters_as_text(self, request):
        return attempt(parameters='{"a": 1}')

    def see_reserved_parameter(self, request):
        return attempt(parameters={"sequence_id": 3})

    def see_no_model(self, request):
        return outcome(
            lambda: pb_utils.InferenceRequest(inputs=[tensor()], requested_output_names=["OUTPUT0"])
        )

    def see_empty_model(self, request):
        return attempt(model_name="")

    def see_no_inputs(self, request):
        return outcome(
            lambda: pb_utils.InferenceRequest(
                requested_output_names=["OUTPUT0"], model_name="called"
            )
        )

    def see_no_outputs(self, request):
        return outcome(lambda: pb_utils.InferenceRequest(inputs=[tensor()], model_name="called"))

    def see_empty_outputs(self, request):
        return attempt(requested_output_names=[])

    def see_inputs_of_arrays(self, request):
        return attempt(inputs=[np.zeros(2, np.float32)])

    def see_inputs_as_tuple(self, request):
        return attempt(inputs=(tensor(),))

    def see_outputs_as_text(self, request):
        return attempt(requested_output_names="OUTPUT0")

    def see_outputs_as_tuple(self, request):
        return attempt(requested_output_names=("OUTPUT0",))

    def see_outputs_of_numbers(self, request):
        return attempt(requested_output_names=[1])

    def see_id_of_number(self, request):
        return attempt(request_id=1)

    def see_id_none(self, request):
        return attempt(request_id=None)

    def see_version_text(self, request):
        return attempt(model_version="1")

    def see_negative_version(self, request):
        return attempt(model_version=-2)

    def see_flags_text(self, request):
        return attempt(flags="1")

    def see_unknown_flags(self, request):
        return outcome(lambda: made(flags=8).flags())

    def see_set_flags(self, request):
        one = made()
        one.set_flags(2)
        return one.flags()

    def see_negative_timeout(self, request):
        return attempt(timeout=-1)

    def see_timeout_text(self, request):
        return attempt(timeout="1")

    def see_fractional_timeout(self, request):
        return attempt(timeout=1.5)

    def see_preferred_memory(self, request):
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)
        return attempt(preferred_memory=memory)

    def see_preferred_memory_without_device(self, request):
        return outcome(lambda: pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU))

    def see_preferred_memory_of_number(self, request):
        return outcome(lambda: pb_utils.PreferredMemory(7))

    def see_preferred_memory_none(self, request):
        return attempt(preferred_memory=None)

    def see_trace_passed_on(self, request):
        return attempt(trace=request.trace())

    def see_unknown_argument(self, request):
        return attempt(priority_level=1)

    def see_sender_of_a_made_request(self, request):
        return outcome(made().get_response_sender)

    def see_is_cancelled(self, request):
        return outcome(made().is_cancelled)
