#!/usr/bin/env python3
"""A discovery handler in Python: it finds the files of the directory that a Configuration's details name.

Debian has all that it needs: python3-grpcio, python3-protobuf, protobuf-compiler and protobuf-compiler-grpc. The contract's classes
are generated of v0.proto:

    protoc -I edge/discovery/wire --python_out=. --grpc_out=. --plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin v0.proto
    ./handler.py /run/edgediscovery
"""

import os
import sys
import time
from concurrent import futures

import grpc
import v0_pb2 as v0
import v0_pb2_grpc as rpc

NAME = "files"


class Handler(rpc.DiscoveryHandlerServicer):
    def Discover(self, request, context):
        directory = request.discovery_details.strip()
        if not os.path.isdir(directory):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"discoveryDetails: {directory!r} is no directory")
        last = None
        while context.is_active():
            files = sorted(os.listdir(directory))
            if files != last:  # the whole list, when it has changed
                yield v0.DiscoverResponse(devices=[v0.Device(id=f, properties={"FILE": os.path.join(directory, f)}) for f in files])
                last = files
            time.sleep(0.2)


def register(directory, endpoint):
    """Registers. edgediscovery keeps that over its own restarts."""
    with grpc.insecure_channel(f"unix://{directory}/agent-registration.sock") as channel:
        request = v0.RegisterDiscoveryHandlerRequest(name=NAME, endpoint=endpoint, endpoint_type="UDS", shared=False)
        rpc.RegistrationStub(channel).RegisterDiscoveryHandler(request, wait_for_ready=True)


def main(directory):
    endpoint = os.path.join(os.path.abspath(directory), NAME + ".sock")
    if os.path.exists(endpoint):
        os.unlink(endpoint)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    rpc.add_DiscoveryHandlerServicer_to_server(Handler(), server)
    server.add_insecure_port("unix://" + endpoint)
    server.start()
    register(directory, endpoint)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
