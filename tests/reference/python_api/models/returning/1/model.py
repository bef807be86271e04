"""Returns from `execute` what it should not, or may."""

import numpy as np
from seen import mode_of, seen

import triton_python_backend_utils as pb_utils


def good():
    return seen("good")


class TritonPythonModel:
    def execute(self, requests):
        return getattr(self, mode_of(requests[0]))(requests)

    def see_list(self, requests):
        return [good()]

    def see_none(self, requests):
        return None

    def see_list_of_none(self, requests):
        return [None]

    def see_tuple(self, requests):
        return (good(),)

    def see_generator(self, requests):
        return (good() for _ in requests)

    def see_array(self, requests):
        return np.array([good()], np.object_)

    def see_dictionary(self, requests):
        return {"SEEN": good()}

    def see_one_response(self, requests):
        return good()

    def see_empty_list(self, requests):
        return []

    def see_two(self, requests):
        return [good(), good()]

    def see_text(self, requests):
        return "good"

    def see_list_of_text(self, requests):
        return ["good"]

    def see_list_of_tensors(self, requests):
        return good().output_tensors()

    def see_list_of_lists(self, requests):
        return [[good()]]

    def see_error_with_outputs(self, requests):
        error = pb_utils.TritonError("said the model", pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse(good().output_tensors(), error)]

    def see_no_outputs(self, requests):
        return [pb_utils.InferenceResponse([])]

    def see_output_twice(self, requests):
        tensors = good().output_tensors()
        return [pb_utils.InferenceResponse([*tensors, *tensors])]

    def see_same_response_again(self, requests):
        if not hasattr(self, "kept"):
            self.kept = good()
        return [self.kept]

    def see_same_response_again_later(self, requests):
        return self.see_same_response_again(requests)

    def see_class_of_response_extended(self, requests):
        kind = type("Own", (pb_utils.InferenceResponse,), {})
        return [kind(good().output_tensors())]
