"""A Python model with the tensors of Triton's vLLM backend, whose prompts say what it answers."""

from __future__ import annotations

from pathlib import Path

from tritrio.protocol.llm_tensors import INPUTS, OUTPUTS

_MODEL = '''
import json
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

PLACE = pathlib.Path(__file__).parents[2].parent


class TritonPythonModel:
    """Answers a prompt "a|b" with the tokens "a" and "b"; text i > 0 of it begins with i.

    Of token ids it answers those. The token "!fail" is an error, "!busy" one of an overloaded
    model, and "!wait" stays until the file `go` is there or the request is cancelled, which leaves
    the file `cancelled`. "!sampling" answers with the sampling parameters, "!crowd" with another
    number of texts than was asked for.
    """

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self.answer(request, sender)
            except pb_utils.TritonModelException as error:
                code = pb_utils.TritonError.INTERNAL
                if str(error) == "busy":
                    code = pb_utils.TritonError.UNAVAILABLE
                error = pb_utils.TritonError(str(error), code)
                sender.send(pb_utils.InferenceResponse(error=error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, request, sender):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        given = {
            name: array[0].decode() if array.dtype == object else array.tolist()
            for name, array in tensors.items()
        }
        sampling = json.loads(given.get("sampling_parameters", "{}"))
        if "text_input" in given:
            tokens = given["text_input"].split("|")
        else:
            tokens = [f" {token}" for token in given["input_ids"]]
        size, n = len(tokens), sampling.get("n", 1)
        if tokens == ["!sampling"]:
            tokens = [json.dumps(sampling, sort_keys=True)]
        n += tokens == ["!crowd"]
        limit = sampling.get("max_tokens")
        reason = "stop"
        if limit is not None and limit < len(tokens):
            tokens, reason = tokens[:limit], "length"
        for token in tokens:
            if token in ("!fail", "!busy") and not given["stream"][0]:
                raise pb_utils.TritonModelException(token[1:])
        if not given["stream"][0]:
            self.send(sender, given, size, n, tokens, reason)
            return
        for index, token in enumerate(tokens):
            if token in ("!fail", "!busy"):
                raise pb_utils.TritonModelException(token[1:])
            while token == "!wait" and not (PLACE / "go").exists():
                if request.is_cancelled():
                    (PLACE / "cancelled").touch()
                    return
                time.sleep(0.005)
            last = reason if index == len(tokens) - 1 else "None"
            self.send(sender, given, size, n, [token], last, first=index == 0)

    def send(self, sender, given, size, n, tokens, reason, first=True):
        texts = [("" if i == 0 or not first else str(i)) + "".join(tokens) for i in range(n)]
        places = [
            {str(i): {"logprob": -0.5, "rank": 1, "decoded_token": token},
             "999": {"logprob": float("-inf"), "rank": 2, "decoded_token": "other"}}
            for i, token in enumerate(tokens)
        ]
        outputs = {
            "text_output": np.array([text.encode() for text in texts], object),
            "finish_reason": np.array([reason.encode()] * n, object),
            "num_input_tokens": np.array([size], np.uint32),
            "num_output_tokens": np.array([len(tokens)] * n, np.uint32),
        }
        if given.get("return_logprobs", [False])[0]:
            outputs["logprobs"] = np.array([json.dumps(places).encode()] * n, object)
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        sender.send(pb_utils.InferenceResponse(tensors))
'''


def talking_config(*parameters: tuple[str, str], without: tuple[str, ...] = ()) -> str:
    """The configuration of the model.

    Args:
      parameters: Key and text of each parameter.
      without: Inputs that it does not have.
    """
    lines = ['backend: "python"', "model_transaction_policy { decoupled: true }"]
    for kind, tensors in (("input", INPUTS), ("output", OUTPUTS)):
        for name, datatype, shape in tensors:
            if name in without:
                continue
            type_name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            optional = " optional: true" if kind == "input" else ""
            dims = f"dims: {list(shape)}"
            lines.append(f'{kind} [ {{ name: "{name}" data_type: {type_name} {dims}{optional} }} ]')
    for key, value in parameters:
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    return "\n".join(lines) + "\n"


def write_talking_model(
    repository: Path,
    name: str,
    *parameters: tuple[str, str],
    without: tuple[str, ...] = (),
) -> None:
    """Write the model into a repository, beside which its files `go` and `cancelled` are."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(_MODEL)
    config = talking_config(*parameters, without=without)
    (directory.parent / "config.pbtxt").write_text(config)
