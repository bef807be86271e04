"""Responses and errors that a model makes."""

import numpy as np
from seen import Sees, described, outcome

import triton_python_backend_utils as pb_utils


def tensor(name="OUT"):
    return pb_utils.Tensor(name, np.ones(1, np.float32))


class TritonPythonModel(Sees):
    def see_defaults(self, request):
        one = pb_utils.InferenceResponse(output_tensors=[])
        return [one.has_error(), one.error(), one.output_tensors()]

    def see_no_arguments(self, request):
        return outcome(pb_utils.InferenceResponse)

    def see_by_position(self, request):
        one = pb_utils.InferenceResponse([tensor()])
        return [described(item) for item in one.output_tensors()]

    def see_error(self, request):
        one = pb_utils.InferenceResponse(error=pb_utils.TritonError("text"))
        return [one.has_error(), one.error().message(), one.output_tensors()]

    def see_error_and_outputs(self, request):
        one = pb_utils.InferenceResponse([tensor()], pb_utils.TritonError("text"))
        return [one.has_error(), len(one.output_tensors())]

    def see_error_of_text(self, request):
        return outcome(lambda: pb_utils.InferenceResponse(error="text"))

    def see_outputs_of_arrays(self, request):
        return outcome(lambda: pb_utils.InferenceResponse([np.ones(1, np.float32)]))

    def see_outputs_as_tuple(self, request):
        return outcome(lambda: pb_utils.InferenceResponse((tensor(),)))

    def see_outputs_none(self, request):
        return outcome(lambda: pb_utils.InferenceResponse(None))

    def see_one_tensor(self, request):
        return outcome(lambda: pb_utils.InferenceResponse(tensor()))

    def see_output_by_name(self, request):
        one = pb_utils.InferenceResponse([tensor("A"), tensor("B")])
        return pb_utils.get_output_tensor_by_name(one, "B").name()

    def see_no_output_of_that_name(self, request):
        return pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([tensor("A")]), "B")

    def see_output_of_an_error(self, request):
        one = pb_utils.InferenceResponse(error=pb_utils.TritonError("text"))
        return outcome(pb_utils.get_output_tensor_by_name, one, "B")

    def see_parameters(self, request):
        return outcome(
            lambda: pb_utils.InferenceResponse([tensor()], parameters={"a": 1}).parameters()
        )

    def see_default_code(self, request):
        return pb_utils.TritonError("text").code() == pb_utils.TritonError.INTERNAL

    def see_codes(self, request):
        names = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS"
        return [
            pb_utils.TritonError("t", getattr(pb_utils.TritonError, name)).code()
            == getattr(pb_utils.TritonError, name)
            for name in [*names.split(), "CANCELLED"]
        ]

    def see_code_numbers(self, request):
        names = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS"
        return [int(getattr(pb_utils.TritonError, name)) for name in [*names.split(), "CANCELLED"]]

    def see_code_of_number(self, request):
        return outcome(lambda: pb_utils.TritonError("text", 2))

    def see_code_by_keyword(self, request):
        return outcome(
            lambda: pb_utils.TritonError(
                message="text", code=pb_utils.TritonError.NOT_FOUND
            ).message()
        )

    def see_empty_message(self, request):
        return pb_utils.TritonError("").message()

    def see_message_of_number(self, request):
        return outcome(lambda: pb_utils.TritonError(3))

    def see_message_of_exception(self, request):
        return outcome(lambda: pb_utils.TritonError(ValueError("x")))

    def see_no_message(self, request):
        return outcome(lambda: pb_utils.TritonError())

    def see_error_is_no_exception(self, request):
        return isinstance(pb_utils.TritonError("text"), Exception)

    def see_exception_is_raised_and_caught(self, request):
        def fail():
            raise pb_utils.TritonModelException("text")

        return outcome(fail, words=["text"])
