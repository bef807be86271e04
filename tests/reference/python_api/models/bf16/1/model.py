"""Tensors of a type that numpy lacks."""

from seen import Sees, mode_of, outcome, seen_tensor

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "X")
        outputs = [seen_tensor(getattr(self, mode_of(request))(tensor))]
        outputs.append(pb_utils.Tensor.from_dlpack("Y", tensor.to_dlpack()))
        return pb_utils.InferenceResponse(outputs)

    def with_shape(self, tensor):
        return [tensor.name(), list(tensor.shape())]

    def with_numpy(self, tensor):
        return outcome(tensor.as_numpy, words=["bf16", "dlpack"])

    def with_device(self, tensor):
        return [int(part) for part in tensor.__dlpack_device__()]

    def with_numpy_of_capsule(self, tensor):
        again = pb_utils.Tensor.from_dlpack("Z", tensor.to_dlpack())
        return [again.name(), list(again.shape())]
