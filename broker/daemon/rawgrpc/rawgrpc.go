// SPDX-License-Identifier: Apache-2.0

// Package rawgrpc serves and calls gRPC with messages as they are on the wire: its callers encode and decode them, so that each part of a
// message is checked and bounded by itself (EachField).
//
// It knows the messages of no service.
package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Message is a message as it is on the wire.
type Message []byte

// codec passes messages through unchanged.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*Message)
	if !ok {
		return nil, fmt.Errorf("a %T is no message", v)
	}
	return *b, nil
}

func (codec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("a %T is no message", v)
	}
	*b = data
	return nil
}

// streamWindow is how much of a stream may be on its way: a server that sends faster than it is read waits.
const streamWindow = 64 << 10

// NewServer makes a server that takes messages of up to 1 MiB.
func NewServer(options ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(options, grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(1<<20))...)
}

// UnaryMethod describes a method of a server. The error of handle is the answer's status, if it is one of grpc.
func UnaryMethod(method string, handle func(ctx context.Context, in []byte) (out []byte, err error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: method, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var in Message
		if err := decode(&in); err != nil {
			return nil, err
		}
		out, err := handle(ctx, in)
		if err != nil {
			return nil, err
		}
		answer := Message(out)
		return &answer, nil
	}}
}

// Call calls a method, /service/method, and returns its answer.
func Call(ctx context.Context, conn *grpc.ClientConn, method string, in []byte) ([]byte, error) {
	request, answer := Message(in), Message(nil)
	err := conn.Invoke(ctx, method, &request, &answer)
	return answer, err
}

// Serve serves until the server is stopped, which is no error even if that was before it began.
func Serve(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Dial makes a client of an endpoint: unix:///path, or host:port with credentials, or without if they are nil. It takes messages of up to
// limit bytes, and connects when it is used.
func Dial(target string, creds credentials.TransportCredentials, limit int) (*grpc.ClientConn, error) {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(limit)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(streamWindow), grpc.WithIdleTimeout(0), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
	}
	if path, ok := strings.CutPrefix(target, "unix://"); ok {
		// The host of the requests is one that every server accepts.
		target = "passthrough:///localhost"
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	} else {
		target = "passthrough:///" + target
	}
	return grpc.NewClient(target, options...)
}

// ListenUnix listens at a path where a program that has ended may have left a socket, for programs of the same group.
func ListenUnix(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		return nil, errors.Join(fmt.Errorf("another program serves at %s", path), conn.Close())
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // G302: the group is that of the programs which may connect
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
