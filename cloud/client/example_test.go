// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
)

var errEnough = errors.New("enough was seen")

// A program that lists the DeviceModels of a hub and follows their changes. It needs to know no kind in advance, and a watch
// that is interrupted goes on where it was.
func Example() {
	server, stop := startHub()
	defer stop()
	c, err := client.New(client.Options{Server: server, Manager: "example"})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	ctx := context.Background()
	kind, err := c.Kind(ctx, "devicemodels") // or another of the kind's names: DeviceModel
	if err != nil {
		panic(err)
	}
	revision, err := c.List(ctx, kind, client.ListOptions{}, func(page []client.Object) error {
		fmt.Println("there are", len(page))
		return nil
	})
	if err != nil {
		panic(err)
	}
	lamp := []byte(`{"apiVersion": "edgebus.io/v1alpha1", "kind": "DeviceModel", "metadata": {"name": "lamp"},
		"spec": {"properties": [{"name": "power", "type": "boolean", "accessMode": "ReadWrite"}]}}`)
	if _, err := c.Create(ctx, kind, "default", lamp, client.WriteOptions{Strict: true}); err != nil {
		panic(err)
	}
	err = c.Watch(ctx, kind, client.ListOptions{}, revision, func(e client.Event) error {
		fmt.Println(e.Type, e.Object.Kind, e.Object.Metadata.Namespace, e.Object.Metadata.Name)
		return errEnough
	})
	fmt.Println(err)
	// Output:
	// there are 0
	// ADDED DeviceModel default lamp
	// enough was seen
}

// startHub runs a hub on a free port until stop is called.
func startHub() (server string, stop func()) {
	dir, err := os.MkdirTemp("", "cloudhub-")
	if err != nil {
		panic(err)
	}
	cfg, _, err := configs.Parse[configs.Hub]("cloudhub", "dev", []string{
		"--data-dir", dir, "--mqtt-listen", "127.0.0.1:0", "--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0",
	}, io.Discard)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	bound, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- cloud.Run(ctx, cloud.Options{Config: cfg, Log: zerolog.Nop(), Ready: func(at daemon.Addresses) { bound <- at.HTTP[0].String() }})
	}()
	select {
	case address := <-bound:
		return "http://" + address, func() {
			cancel()
			<-ended
			_ = os.RemoveAll(dir)
		}
	case err := <-ended:
		panic(err)
	}
}
