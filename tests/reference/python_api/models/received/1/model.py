"""The tensors of a request."""

from seen import Sees, described, outcome

import triton_python_backend_utils as pb_utils


def others(request):
    return sorted(
        (tensor for tensor in request.inputs() if tensor.name() != "MODE"),
        key=lambda tensor: tensor.name(),
    )


class TritonPythonModel(Sees):
    def with_elements(self, request):
        return [described(tensor) for tensor in others(request)]

    def with_writing(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "F").as_numpy()
        array[0] = 9
        again = pb_utils.get_input_tensor_by_name(request, "F").as_numpy()
        return [array.tolist(), again.tolist()]

    def with_layout(self, request):
        flags = [tensor.as_numpy().flags for tensor in others(request)]
        return [[flag.c_contiguous, flag.writeable] for flag in flags]

    def with_element_types(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
        return [type(item).__name__ for item in array]

    def with_is_cpu(self, request):
        return [tensor.is_cpu() for tensor in request.inputs()]

    def see_left_out(self, request):
        return pb_utils.get_input_tensor_by_name(request, "F")

    def see_unknown(self, request):
        return pb_utils.get_input_tensor_by_name(request, "OTHER")

    def see_names(self, request):
        return [tensor.name() for tensor in request.inputs()]

    def see_inputs_type(self, request):
        return type(request.inputs()).__name__

    def see_tensor_type(self, request):
        return isinstance(request.inputs()[0], pb_utils.Tensor)

    def see_same_array_twice(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "MODE")
        return tensor.as_numpy() is tensor.as_numpy()

    def see_text_as_dlpack(self, request):
        return outcome(pb_utils.get_input_tensor_by_name(request, "MODE").to_dlpack)

    def see_no_request(self, request):
        return outcome(pb_utils.get_input_tensor_by_name, None, "MODE")
