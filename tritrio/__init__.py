"""A Triton-compatible inference server built from trio actors."""
