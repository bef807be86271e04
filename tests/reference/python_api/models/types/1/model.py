"""The functions that translate data types and BYTES tensors."""

import numpy as np
from seen import Sees, outcome, shown

import triton_python_backend_utils as pb_utils

NAMES = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING"


def name_of(kind):
    return np.dtype(kind).name


def wire(array):
    value = pb_utils.serialize_byte_tensor(array)
    return value if value is None or isinstance(value, bytes) else value.item()


def written(array, kind=np.object_):
    return outcome(lambda: wire(np.array(array, kind)))


class TritonPythonModel(Sees):
    def see_numpy_types_of_numbers(self, request):
        return [name_of(pb_utils.triton_to_numpy_type(number)) for number in range(1, 14)]

    def see_numpy_type_of_no_number(self, request):
        return outcome(pb_utils.triton_to_numpy_type, 99)

    def see_numpy_type_of_zero(self, request):
        return outcome(pb_utils.triton_to_numpy_type, 0)

    def see_numpy_type_of_bf16(self, request):
        return outcome(pb_utils.triton_to_numpy_type, 14)

    def see_numbers_of_numpy_types(self, request):
        kinds = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32]
        kinds += [np.uint64, np.float16, np.float32, np.float64, np.object_, np.bytes_]
        return [int(pb_utils.numpy_to_triton_type(kind)) for kind in kinds]

    def see_number_of_a_dtype(self, request):
        return outcome(pb_utils.numpy_to_triton_type, np.dtype(np.float32))

    def see_number_of_text(self, request):
        return outcome(pb_utils.numpy_to_triton_type, np.str_)

    def see_number_of_complex(self, request):
        return outcome(pb_utils.numpy_to_triton_type, np.complex64)

    def see_numpy_types_of_names(self, request):
        return [name_of(pb_utils.triton_string_to_numpy(f"TYPE_{name}")) for name in NAMES.split()]

    def see_numpy_type_of_bf16_name(self, request):
        return outcome(pb_utils.triton_string_to_numpy, "TYPE_BF16")

    def see_numpy_type_of_bytes_name(self, request):
        return outcome(pb_utils.triton_string_to_numpy, "TYPE_BYTES")

    def see_numpy_type_of_short_name(self, request):
        return outcome(pb_utils.triton_string_to_numpy, "FP32")

    def see_numpy_type_is_a_type(self, request):
        return isinstance(pb_utils.triton_string_to_numpy("TYPE_FP32"), type)

    def see_wire_form_of_bytes(self, request):
        return written([b"a", b"", b"\x00\xff"])

    def see_wire_form_of_text(self, request):
        return written(["ä", "b"])

    def see_wire_form_of_numbers_as_objects(self, request):
        return written([1, 2.5])

    def see_wire_form_of_byte_strings(self, request):
        return written([b"abc", b"d"], np.bytes_)

    def see_wire_form_of_text_array(self, request):
        return written(["abc", "d"], np.str_)

    def see_wire_form_of_rows(self, request):
        return written([[b"a", b"b"], [b"c", b"d"]])

    def see_wire_form_of_no_elements(self, request):
        return written([])

    def see_wire_form_of_floats(self, request):
        return written([1.5], np.float32)

    def see_wire_form_of_result_has_item(self, request):
        return hasattr(pb_utils.serialize_byte_tensor(np.array([b"a"], np.object_)), "item")

    def see_wire_form_of_read_back(self, request):
        return shown(pb_utils.deserialize_bytes_tensor(b"\x01\0\0\0a\0\0\0\0\x02\0\0\0\xff\xfe"))

    def see_wire_form_of_read_nothing(self, request):
        return shown(pb_utils.deserialize_bytes_tensor(b""))

    def see_wire_form_of_read_cut_off(self, request):
        return outcome(pb_utils.deserialize_bytes_tensor, b"\x05\0\0\0ab")

    def see_wire_form_of_read_cut_off_length(self, request):
        return outcome(pb_utils.deserialize_bytes_tensor, b"\x05\0")
