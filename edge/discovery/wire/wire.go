// SPDX-License-Identifier: Apache-2.0

// Package wire is the gRPC contract between edgediscovery and discovery handlers: Akri's (package v0), and that of the proposal from
// which it came (package discovery). Its few messages are read and written by hand, so that each device of an answer is checked and
// bounded by itself; v0.proto and discovery.proto are for handlers in other languages.
//
// It never decides when to call whom, and keeps nothing.
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/configs"
)

// Contract is one of the two that handlers speak.
type Contract string

// The contracts.
const (
	ContractV0       Contract = "v0"
	ContractProposal Contract = "discovery"
)

// names are those of a contract's two services.
func (c Contract) names() (registration, register, handler string) {
	if c == ContractProposal {
		return "discovery.Registration", "Register", "discovery.Discovery"
	}
	return "v0.Registration", "RegisterDiscoveryHandler", "v0.DiscoveryHandler"
}

// Dial makes a client of an endpoint: unix:///path, or host:port with credentials, or without if they are nil. It connects when it is used.
func Dial(target string, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return rawgrpc.Dial(target, creds, MaxResponse)
}

// MutualTLS are the credentials of both ends where each shows a certificate that the same authorities signed; nil without a
// certificate, and then only an address of loopback is served or dialled.
func MutualTLS(t configs.TLSClient) (server, client credentials.TransportCredentials, err error) {
	if t == (configs.TLSClient{}) {
		return nil, nil, nil
	}
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return nil, nil, errors.New("mutual TLS needs a certificate, its key, and the authorities that signed those of the other side: cert, key and ca")
	}
	serving, err := configs.TLSListener{Cert: t.Cert, Key: t.Key, ClientCA: t.CA}.Config()
	if err != nil {
		return nil, nil, err
	}
	serving.ClientAuth = tls.RequireAndVerifyClientCert
	dialling, err := t.Config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(serving), credentials.NewTLS(dialling), nil
}

// IsLoopback reports whether host:port is an address of this host that no other can reach.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// ServeRegistration has s answer registrations of both contracts. An error of register is the caller's mistake.
func ServeRegistration(s *grpc.Server, register func(context.Context, Registration) error) {
	for _, c := range []Contract{ContractV0, ContractProposal} {
		service, method, _ := c.names()
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: service, HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{rawgrpc.UnaryMethod(method, func(ctx context.Context, in []byte) ([]byte, error) {
				r, err := parseRegistration(in, c)
				if err == nil {
					err = register(ctx, r)
				}
				if err != nil {
					return nil, status.Error(codes.InvalidArgument, err.Error())
				}
				return nil, nil
			})},
		}, nil)
	}
}

// Register registers a handler.
func Register(ctx context.Context, conn *grpc.ClientConn, r Registration) error {
	service, method, _ := r.Contract.names()
	_, err := rawgrpc.Call(ctx, conn, "/"+service+"/"+method, r.appendTo(nil))
	return err
}

// ServeHandler has s answer Discover of both contracts. told is what users should know of a list; Akri's agents pass over it. The error of discover is the answer's status, if it is one of grpc.
func ServeHandler(s *grpc.Server, discover func(ctx context.Context, r Request, c Contract, send func(d Devices, told string) error) error) {
	for _, c := range []Contract{ContractV0, ContractProposal} {
		_, _, service := c.names()
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: service, HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{StreamName: "Discover", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				var in rawgrpc.Message
				if err := stream.RecvMsg(&in); err != nil {
					return err
				}
				r, err := parseRequest(in, c)
				if err != nil {
					return status.Errorf(codes.InvalidArgument, "the request can't be read: %v", err)
				}
				return discover(stream.Context(), r, c, func(d Devices, told string) error {
					out := rawgrpc.Message(appendTold(d.appendTo(nil), told))
					return stream.SendMsg(&out)
				})
			}}},
		}, nil)
	}
}

// Discover asks a handler, and calls received with each list as it is on the wire, for EachDevice, until ctx ends, the handler ends
// the stream, which is no error, or received returns an error.
func Discover(ctx context.Context, conn *grpc.ClientConn, c Contract, r Request, received func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, _, service := c.names()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Discover", ServerStreams: true}, "/"+service+"/Discover")
	if err != nil {
		return err
	}
	in := rawgrpc.Message(r.appendTo(nil, c))
	if err := stream.SendMsg(&in); err != nil && !errors.Is(err, io.EOF) { // EOF: the status follows
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		var out rawgrpc.Message
		switch err := stream.RecvMsg(&out); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := received(out); err != nil {
			return err
		}
	}
}
