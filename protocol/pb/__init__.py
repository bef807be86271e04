"""Protobuf messages, generated from `proto/*.proto` by `scripts/gen_protos`.

`pb.inference` holds the KServe and model configuration messages, `pb.grpc.health.v1` the health
check. They are plain betterproto2 dataclasses: no compiler and no google runtime is needed here.
"""
