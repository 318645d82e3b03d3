// SPDX-License-Identifier: Apache-2.0

package mappers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/mappers"
)

// valves is a driver for valves. Its devices are in this process; those of a real driver are behind a connection.
type valves struct{ known map[string]*valve }

// valve is the device.
type valve struct {
	mu       sync.Mutex
	position string
	changed  chan string // somebody turns the valve by hand
}

// Protocols implements mappers.Driver.
func (d valves) Protocols() []string { return []string{"valve"} }

// Open implements mappers.Driver. What the configuration lacks is a *ConfigError, which names the field; what else goes
// wrong is tried again with increasing delay.
func (d valves) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	address := dev.Config["address"]
	if address == "" {
		return nil, mappers.BadConfig("address", "is missing: the number on the valve's label")
	}
	v, ok := d.known[address]
	if !ok {
		return nil, errors.New("valve " + address + " does not answer")
	}
	return session{v}, nil
}

// session is an open valve. Each method beside Close makes it one more of mappers' interfaces; leave out what your
// devices can't do.
type session struct{ *valve }

// Close implements mappers.Session.
func (s session) Close() error { return nil }

// Read implements mappers.Reader: poll. It is called as often as the property's visitor says.
func (s session) Read(context.Context, string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position, nil
}

// Write implements mappers.Writer. A *Refusal is the device's answer and final; after another error the property is read until it has
// the value, and written again only after that.
func (s session) Write(_ context.Context, _, value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.position == "jammed" {
		return mappers.Refuse(mappers.Rejected, "the valve is jammed")
	}
	s.position = value
	return nil
}

// Push implements mappers.Pusher: the device sends changes by itself.
func (s session) Push(ctx context.Context, emit func(property, value string)) error {
	for {
		select {
		case position := <-s.changed:
			emit("position", position)
		case <-ctx.Done():
			return nil
		}
	}
}

// Command implements mappers.Commander: a request with an answer, which nothing stores.
func (s session) Command(_ context.Context, name string, payload []byte) ([]byte, error) {
	if name != "stroke" {
		return nil, mappers.Refuse(mappers.Invalid, "a valve knows the command stroke, not %s", name)
	}
	return []byte("stroked " + strings.TrimSpace(string(payload)) + " times"), nil
}

// A driver, whole: it implements Driver, and its sessions as much of Reader, Writer, Pusher and Commander as the devices
// can do. The program is cmd.Program{…}.Main with it; the test is drivertest.Run, and begins as this one does.
func Example_driver() {
	device := &valve{position: "20", changed: make(chan string, 1)}
	driver := valves{map[string]*valve{"7": device}}
	description := mappers.Device{
		Node: "n1", Name: "inlet", Config: map[string]string{"address": "7"},
		Properties: []mappers.Property{{Name: "position", Type: mappers.Int, Writable: true, Visited: true, Maximum: new(100.0)}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	_, err := mappers.Open(ctx, driver, mappers.Device{Name: "inlet"})
	fmt.Println(err)

	inlet, err := mappers.Open(ctx, driver, description)
	if err != nil {
		panic(err)
	}
	defer inlet.Close()
	fmt.Println(inlet.Write(ctx, "position", "140")) // the SDK's check: the driver is not asked
	fmt.Println(inlet.Write(ctx, "position", "40"), device.position)

	pushed := make(chan string)
	go func() {
		_ = inlet.Session.(mappers.Pusher).Push(ctx, func(property, value string) { pushed <- property + " " + value })
	}()
	device.changed <- "55"
	fmt.Println(<-pushed)

	answer, err := inlet.Session.(mappers.Commander).Command(ctx, "stroke", []byte("3"))
	fmt.Println(string(answer), err)
	// Output:
	// address: is missing: the number on the valve's label
	// OutOfRange: position: "140" is above the maximum of 100
	// <nil> 40
	// position 55
	// stroked 3 times <nil>
}
