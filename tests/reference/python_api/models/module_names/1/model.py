"""The names of the module and of its classes."""

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils

FAMILY = outcome(
    lambda: pb_utils.MetricFamily("api_import", "Too early", pb_utils.MetricFamily.COUNTER)
)
TENSOR = hasattr(pb_utils, "Tensor")


def missing(owner, names):
    return [name for name in names.split() if not hasattr(owner, name)]


class TritonPythonModel(Sees):
    def see_functions(self, request):
        return missing(
            pb_utils,
            "get_input_tensor_by_name get_output_tensor_by_name get_input_config_by_name "
            "get_output_config_by_name using_decoupled_model_transaction_policy "
            "triton_to_numpy_type numpy_to_triton_type triton_string_to_numpy "
            "serialize_byte_tensor deserialize_bytes_tensor load_model unload_model "
            "is_model_ready get_model_dir",
        )

    def see_classes(self, request):
        return missing(
            pb_utils,
            "ModelConfig TritonError TritonModelException Tensor InferenceRequest "
            "InferenceResponse InferenceResponseSender ResponseIterator PreferredMemory "
            "MemoryType Logger MetricFamily Metric InferenceTrace",
        )

    def see_constants(self, request):
        return [
            pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
            pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
            pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL,
            pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
        ]

    def see_memory_constants(self, request):
        return missing(pb_utils, "TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU")

    def see_exception(self, request):
        return [issubclass(pb_utils.TritonModelException, Exception)]

    def see_tensor(self, request):
        return missing(
            pb_utils.Tensor,
            "name as_numpy triton_dtype shape is_cpu to_dlpack from_dlpack __dlpack__ "
            "__dlpack_device__",
        )

    def see_request(self, request):
        return missing(
            pb_utils.InferenceRequest,
            "inputs request_id correlation_id requested_output_names parameters flags set_flags "
            "timeout trace exec async_exec get_response_sender is_cancelled set_release_flags "
            "priority preferred_memory model_name",
        )

    def see_response(self, request):
        return missing(pb_utils.InferenceResponse, "output_tensors has_error error")

    def see_response_parameters(self, request):
        return missing(pb_utils.InferenceResponse, "parameters")

    def see_sender(self, request):
        return missing(type(request.get_response_sender()), "send is_cancelled")

    def see_error_codes(self, request):
        return missing(
            pb_utils.TritonError,
            "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS "
            "CANCELLED code message",
        )

    def see_logger(self, request):
        return missing(
            pb_utils.Logger,
            "log log_info log_warn log_error log_verbose LogLevel INFO WARNING ERROR VERBOSE",
        )

    def see_metric_family(self, request):
        return missing(pb_utils.MetricFamily, "COUNTER GAUGE HISTOGRAM Metric MetricKind")

    def see_metric(self, request):
        return missing(pb_utils.Metric, "increment set value observe MetricKind")

    def see_model_config(self, request):
        return missing(
            pb_utils.ModelConfig,
            "as_dict set_max_batch_size set_dynamic_batching add_input add_output "
            "set_model_transaction_policy",
        )

    def see_memory(self, request):
        return missing(
            pb_utils.MemoryType, "TRITONSERVER_MEMORY_GPU TRITONSERVER_MEMORY_CPU __members__"
        )

    def see_iterator(self, request):
        return missing(pb_utils.ResponseIterator, "cancel __iter__ __next__")

    def see_trace(self, request):
        return missing(pb_utils.InferenceTrace, "get_context")

    def see_metrics_at_import(self, request):
        return FAMILY

    def see_classes_at_import(self, request):
        return TENSOR
