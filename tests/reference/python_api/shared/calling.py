"""What the models share that call other models; copied beside their code."""

import json

import numpy as np
from seen import described

import triton_python_backend_utils as pb_utils


def call(*values, model="called", outputs=("OUTPUT0",), name="INPUT0", kind=np.float32, **more):
    """Return a request for another model."""
    tensor = pb_utils.Tensor(name, np.array(values, kind))
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=list(outputs), **more
    )


def shown_response(response, words=()):
    """Return what a response has."""
    if response.has_error():
        text = response.error().message().lower()
        return {
            "code": code_name(response.error()),
            "says": [word for word in words if word in text],
            "outputs": len(response.output_tensors()),
        }
    return [described(tensor) for tensor in response.output_tensors()]


def code_name(error):
    """Return the name of an error's code."""
    names = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS"
    for name in [*names.split(), "CANCELLED"]:
        if error.code() == getattr(pb_utils.TritonError, name):
            return name
    return "none of these"


def facts_of(response):
    """Return what the model `called` saw of its request."""
    tensor = pb_utils.get_output_tensor_by_name(response, "FACTS")
    return json.loads(tensor.as_numpy()[0])
