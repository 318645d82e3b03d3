// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// gateways finds the gateways of a building. A real handler asks the network in place of the list.
type gateways struct{ all []string }

// settings are what a Configuration may say in discoveryDetails.
type settings struct {
	Floor    string        `yaml:"floor"`
	Interval time.Duration `yaml:"interval"`
}

// Discover implements handler.Handler.
func (g gateways) Discover(ctx context.Context, details string, _ map[string][]byte, found func([]handler.Device)) error {
	want := settings{Interval: time.Minute}
	if err := handler.Details(details, &want); err != nil {
		return err
	}
	if want.Floor == "" {
		return handler.InvalidArgument("floor: is missing: the floor whose gateways are looked for, such as 2")
	}
	return handler.RunEvery(ctx, want.Interval, func() error {
		var devices []handler.Device
		for _, name := range g.all {
			devices = append(devices, handler.Device{ID: "floor" + want.Floor + "-" + name, Properties: map[string]string{"GATEWAY": name}})
		}
		found(devices)
		return nil
	})
}

// A discovery handler, whole. Its program is handler.Main with the Program below, and `edgediscovery` can have it linked in.
func Example() {
	program := handler.Program{
		Name: "gateways", Short: "Finds the gateways of a building", Shared: true,
		New: func(handler.Env) handler.Handler { return gateways{[]string{"east", "west"}} },
	}
	h := program.New(handler.Env{})
	fmt.Println(program.Name, "–", program.Short, "– shared:", program.Shared)

	err := handler.Call(context.Background(), h, "flor: 2", nil, func([]handler.Device) {})
	fmt.Println(handler.IsInvalidArgument(err), err)

	ctx, stop := context.WithCancel(context.Background())
	err = handler.Call(ctx, h, "floor: 2", nil, func(devices []handler.Device) {
		for _, d := range devices {
			fmt.Println(d.ID, d.Properties["GATEWAY"])
		}
		stop()
	})
	fmt.Println(err)
	// Output:
	// gateways – Finds the gateways of a building – shared: true
	// true discoveryDetails: line 1: there is no field flor: it is one of floor, interval
	// floor2-east east
	// floor2-west west
	// <nil>
}
