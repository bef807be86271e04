"""The same requests to a real Triton and to us; the answers must agree, or say why not."""
