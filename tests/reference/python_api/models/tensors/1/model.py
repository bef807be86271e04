"""Tensors that a model makes."""

import numpy as np
from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


def made(array, name="T"):
    return outcome(lambda: pb_utils.Tensor(name, array))


class TritonPythonModel(Sees):
    def see_every_type(self, request):
        kinds = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
        return {kind: made(np.array([1, 0], kind)) for kind in kinds.split()}

    def see_empty_name(self, request):
        return outcome(pb_utils.Tensor, "", np.zeros(1, np.float32), words=["name"])

    def see_name_that_is_no_text(self, request):
        return outcome(pb_utils.Tensor, 3, np.zeros(1, np.float32))

    def see_name_that_is_none(self, request):
        return outcome(pb_utils.Tensor, None, np.zeros(1, np.float32))

    def see_name_beyond_ascii(self, request):
        return made(np.zeros(1, np.float32), "größe")

    def see_list(self, request):
        return made([1.0, 2.0])

    def see_none(self, request):
        return made(None)

    def see_scalar(self, request):
        return made(1.5)

    def see_numpy_scalar(self, request):
        return made(np.float32(1.5))

    def see_no_dimensions(self, request):
        return made(np.array(1.5, np.float32))

    def see_no_elements(self, request):
        return made(np.zeros((0, 3), np.float32))

    def see_columns_first(self, request):
        return made(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))

    def see_every_second_element(self, request):
        return made(np.arange(6, dtype=np.float32)[::2])

    def see_backwards(self, request):
        return made(np.arange(3, dtype=np.float32)[::-1])

    def see_read_only(self, request):
        array = np.arange(3, dtype=np.float32)
        array.flags.writeable = False
        return made(array)

    def see_broadcast(self, request):
        return made(np.broadcast_to(np.float32(2), (2, 2)))

    def see_other_byte_order(self, request):
        return made(np.arange(3, dtype=">f4"))

    def see_complex(self, request):
        return made(np.zeros(1, np.complex64))

    def see_dates(self, request):
        return made(np.zeros(1, "datetime64[s]"))

    def see_records(self, request):
        return made(np.zeros(1, [("a", "i4")]))

    def see_long_double(self, request):
        return made(np.zeros(1, np.longdouble))

    def see_text(self, request):
        return made(np.array(["a", "bcd"]))

    def see_byte_strings(self, request):
        return made(np.array([b"a", b"bcd"]))

    def see_byte_objects(self, request):
        return made(np.array([b"a", b"bcd"], np.object_))

    def see_text_objects(self, request):
        return made(np.array(["a", "bcd"], np.object_))

    def see_is_cpu(self, request):
        return pb_utils.Tensor("T", np.zeros(1, np.float32)).is_cpu()

    def see_shape_type(self, request):
        return type(pb_utils.Tensor("T", np.zeros((1, 2), np.float32)).shape()).__name__

    def see_shares_memory(self, request):
        array = np.zeros(2, np.float32)
        tensor = pb_utils.Tensor("T", array)
        array[0] = 7
        return tensor.as_numpy().tolist()

    def see_by_keyword(self, request):
        return outcome(lambda: pb_utils.Tensor(name="T", numpy_array=np.zeros(1, np.float32)))

    def see_data_type(self, request):
        return outcome(lambda: int(pb_utils.Tensor("T", np.zeros(1, np.float32)).triton_dtype()))

    def see_without_elements_argument(self, request):
        return outcome(lambda: pb_utils.Tensor("T"))
