"""Outputs of numbers whose memory is laid out in many ways."""

import numpy as np
from seen import mode_of

import triton_python_backend_utils as pb_utils


def floats():
    return np.arange(6, dtype=np.float32).reshape(2, 3)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        array = getattr(self, mode_of(request))(request)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

    def see_rows(self, request):
        return floats()

    def see_columns_first(self, request):
        return np.asfortranarray(floats())

    def see_transposed(self, request):
        return floats().T

    def see_every_second_column(self, request):
        return floats()[:, ::2]

    def see_backwards(self, request):
        return floats()[::-1]

    def see_broadcast(self, request):
        return np.broadcast_to(np.float32(2), (2, 2))

    def see_read_only(self, request):
        array = floats()
        array.flags.writeable = False
        return array

    def see_no_elements(self, request):
        return np.zeros((0, 3), np.float32)

    def see_other_byte_order(self, request):
        return floats().astype(">f4")

    def see_matrix(self, request):
        return np.asmatrix(floats())

    def see_masked(self, request):
        return np.ma.masked_greater(floats(), 3)

    def see_not_a_number(self, request):
        return np.array([[1, 2]], np.float32)
