"""Outputs of text, made in many ways."""

import numpy as np
from seen import mode_of

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        array = getattr(self, mode_of(request))(request)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

    def see_bytes(self, request):
        return np.array([b"a", b"", b"bcd"], np.object_)

    def see_text(self, request):
        return np.array(["a", "größe"], np.object_)

    def see_mixed(self, request):
        return np.array([b"a", "b"], np.object_)

    def see_numbers(self, request):
        return np.array([1, 2.5, True], np.object_)

    def see_none(self, request):
        return np.array([None], np.object_)

    def see_byte_strings(self, request):
        return np.array([b"abc", b"d"])

    def see_byte_strings_with_zeros(self, request):
        return np.array([b"a\0", b"\0b"])

    def see_text_array(self, request):
        return np.array(["abc", "d"])

    def see_byte_arrays(self, request):
        array = np.empty(1, np.object_)
        array[0] = bytearray(b"a")
        return array

    def see_no_elements(self, request):
        return np.zeros(0, np.object_)

    def see_numpy_text(self, request):
        return np.array([np.str_("a"), np.bytes_(b"b")], np.object_)

    def see_every_second(self, request):
        return np.array([b"a", b"b", b"c"], np.object_)[::2]
