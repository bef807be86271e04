"""Fills in batches, the dynamic batcher and the inputs."""

from seen import mode_of, seen_tensor

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.add_input({"name": "MODE", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "SEEN", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "MODE").shape()
            tensor = pb_utils.Tensor(
                "SEEN",
                seen_tensor([mode_of(request), list(rows)])
                .as_numpy()
                .repeat(rows[0])
                .reshape(-1, 1),
            )
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
