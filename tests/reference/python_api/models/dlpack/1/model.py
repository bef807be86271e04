"""Tensors that share memory with other libraries."""

import numpy as np
from seen import Sees, outcome, shown

import triton_python_backend_utils as pb_utils


class Holder:
    """Offers only what the protocol asks for."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def floats():
    return np.arange(6, dtype=np.float32).reshape(2, 3)


class TritonPythonModel(Sees):
    def see_there_and_back(self, request):
        return outcome(
            lambda: pb_utils.Tensor.from_dlpack("D", pb_utils.Tensor("T", floats()).to_dlpack())
        )

    def see_every_type(self, request):
        kinds = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
        return {
            kind: outcome(
                lambda kind=kind: pb_utils.Tensor.from_dlpack(
                    "D", pb_utils.Tensor("T", np.array([1, 0], kind)).to_dlpack()
                )
            )
            for kind in kinds.split()
        }

    def see_bool_there(self, request):
        return outcome(lambda: type(pb_utils.Tensor("T", np.array([True])).to_dlpack()).__name__)

    def see_bool_there_and_back(self, request):
        return outcome(
            lambda: pb_utils.Tensor.from_dlpack(
                "D", pb_utils.Tensor("T", np.array([True, False])).to_dlpack()
            )
        )

    def see_capsule_type(self, request):
        return type(pb_utils.Tensor("T", floats()).to_dlpack()).__name__

    def see_from_an_array(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", floats()))

    def see_from_an_object(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", Holder(floats())))

    def see_from_a_tensor(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", pb_utils.Tensor("T", floats())))

    def see_into_numpy(self, request):
        return outcome(lambda: np.from_dlpack(pb_utils.Tensor("T", floats())))

    def see_device(self, request):
        return outcome(
            lambda: [int(part) for part in pb_utils.Tensor("T", floats()).__dlpack_device__()]
        )

    def see_device_type(self, request):
        return type(pb_utils.Tensor("T", floats()).__dlpack_device__()).__name__

    def see_with_stream(self, request):
        tensor = pb_utils.Tensor("T", floats())
        return outcome(lambda: type(tensor.__dlpack__(stream=None)).__name__)

    def see_text(self, request):
        tensor = pb_utils.Tensor("T", np.array([b"a"], np.object_))
        return outcome(tensor.to_dlpack, words=["dlpack"])

    def see_columns_first(self, request):
        array = np.asfortranarray(floats())
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", array), words=["contiguous"])

    def see_every_second_column(self, request):
        return outcome(
            lambda: pb_utils.Tensor.from_dlpack("D", floats()[:, ::2]), words=["contiguous"]
        )

    def see_columns_first_there(self, request):
        tensor = pb_utils.Tensor("T", np.asfortranarray(floats()))
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", tensor.to_dlpack()))

    def see_capsule_twice(self, request):
        capsule = pb_utils.Tensor("T", floats()).to_dlpack()
        pb_utils.Tensor.from_dlpack("D", capsule)
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", capsule))

    def see_no_capsule(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", 3))

    def see_empty_name(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("", floats()), words=["name"])

    def see_no_elements(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", np.zeros((0, 2), np.float32)))

    def see_no_dimensions(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", np.array(1.5, np.float32)))

    def see_complex(self, request):
        return outcome(lambda: pb_utils.Tensor.from_dlpack("D", np.zeros(1, np.complex64)))

    def see_shared_memory(self, request):
        array = floats()
        tensor = pb_utils.Tensor.from_dlpack("D", array)
        array[0, 0] = 7
        return shown(tensor.as_numpy()[0, :1])

    def see_owner_gone(self, request):
        tensor = pb_utils.Tensor.from_dlpack("D", floats() + 1)
        return shown(tensor.as_numpy())
