// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

const lampManifest = `
apiVersion: edgebus.io/v1alpha1
kind: DeviceModel
metadata: {name: lamp, namespace: default}
spec:
  properties:
  - {name: power, type: string, accessMode: ReadWrite, enum: ["ON", "OFF"]}
`

// A hub in one call, in a test of your own: with a directory that is deleted afterwards, on free ports. The settings are
// those of the command line, so `cloudhub --help` lists them. Without users in them, programs of this host need not
// sign in.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "cloudhub-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	cfg, _, err := configs.Parse[configs.Hub]("cloudhub", "dev", []string{
		"--data-dir", dir, "--mqtt-listen", "127.0.0.1:0", "--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0",
	}, io.Discard)
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	bound, ended := make(chan daemon.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- cloud.Run(ctx, cloud.Options{Config: cfg, Log: zerolog.Nop(), Ready: func(at daemon.Addresses) { bound <- at }})
	}()
	at := <-bound

	c, err := client.New(client.Options{Server: "http://" + at.HTTP[0].String(), Manager: "example"})
	if err != nil {
		panic(err)
	}
	for _, document := range client.Documents([]byte(lampManifest)) {
		if document.Err != nil {
			panic(document.Err)
		}
		for _, o := range document.Objects {
			kind, err := c.KindOf(ctx, o.TypeMeta)
			if err != nil {
				panic(err)
			}
			change, err := c.Apply(ctx, kind, o.Metadata.Namespace, o, client.WriteOptions{Strict: true})
			fmt.Println(o.Kind, o.Metadata.Name, change.Outcome, err)
		}
	}
	kind, err := c.Kind(ctx, "devicemodel")
	if err != nil {
		panic(err)
	}
	stored, err := c.Object(ctx, kind, "default", "lamp")
	if err != nil {
		panic(err)
	}
	var model resource.DeviceModel
	if err := stored.Into(&model); err != nil {
		panic(err)
	}
	fmt.Println(model.Spec.Properties[0].Name, model.Spec.Properties[0].Enum)

	c.Close()
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// DeviceModel lamp created <nil>
	// power [ON OFF]
	// ended: <nil>
}
