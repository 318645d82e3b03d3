// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
)

// errUnknownDevice is the answer to a report about a device that this node doesn't have for KubeEdge's mappers.
var errUnknownDevice = errors.New("no Device of this node has this name and the protocol of a registered mapper")

// serve answers mappers of both contracts until ctx ends.
func (b *bridge) serve(ctx context.Context, l net.Listener) error {
	s := rawgrpc.NewServer()
	for _, c := range []contract{contractV1beta1, contractV1alpha1} {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: string(c) + ".DeviceManagerService", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
			rawgrpc.UnaryMethod("MapperRegister", func(_ context.Context, in []byte) ([]byte, error) {
				r, withData, err := parseRegistration(c, in)
				if err != nil {
					return nil, status.Error(codes.InvalidArgument, err.Error())
				}
				return b.register(r, withData)
			}),
			rawgrpc.UnaryMethod("ReportDeviceStatus", func(_ context.Context, in []byte) ([]byte, error) {
				r, err := parseStatus(c, in)
				return nil, b.answer(r, err)
			}),
			rawgrpc.UnaryMethod("ReportDeviceStates", func(_ context.Context, in []byte) ([]byte, error) {
				r, err := parseStates(in)
				return nil, b.answer(r, err)
			}),
		}}, nil)
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	return rawgrpc.Serve(s, l)
}

// answer takes a report, and is the answer to its sender.
func (b *bridge) answer(r report, err error) error {
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := b.take(r); err != nil {
		return status.Errorf(codes.NotFound, "deviceName %q: %v", r.device, err)
	}
	return nil
}
