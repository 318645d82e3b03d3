// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// scanNetwork asks who is there, and lists who answers within the time, each once.
func scanNetwork(ctx context.Context, c *wire.Client, wait time.Duration, out io.Writer) error {
	var mu sync.Mutex
	found := map[wire.ObjectID]wire.IAm{}
	defer c.Announcements(func(i wire.IAm) {
		mu.Lock()
		defer mu.Unlock()
		found[i.Device] = i
	})()
	end := time.After(wait)
	again := time.NewTicker(max(wait/4, 100*time.Millisecond))
	defer again.Stop()
	for waiting := true; waiting; {
		if err := c.WhoIs(0, wire.MaxInstance); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			waiting = false
		case <-again.C:
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(found) == 0 {
		return fmt.Errorf("nobody answered Who-Is within %s: devices of other subnets are found with --bbmd, those of another interface with --broadcast", wait)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "DEVICE\tADDRESS\tNAME\tVENDOR\tMODEL")
	for _, id := range sortedKeys(found) {
		i := found[id]
		about := func(p wire.PropertyID) string {
			v, err := c.Read(ctx, i.Address, wire.Reference{Object: id, Property: p, Index: wire.NoIndex})
			if text, ok := firstOf(v).(string); err == nil && ok {
				return text
			}
			return "-"
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", id.Instance(), i.Address, about(wire.ObjectName), about(wire.VendorName), about(wire.ModelName))
	}
	return w.Flush()
}

func sortedKeys(m map[wire.ObjectID]wire.IAm) (list []wire.ObjectID) {
	for id := range m {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

func firstOf(list []any) any {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// target is a device that a command is about.
type target struct {
	client   *wire.Client
	address  wire.Address
	instance uint32
	config   map[string]string // as its Device has it
}

// findTarget understands 10.0.0.9, 10.0.0.9:47808 and a device's number.
func findTarget(ctx context.Context, c *wire.Client, text string) (t target, err error) {
	t.client = c
	if n, err := strconv.ParseUint(text, 10, 22); err == nil {
		found, err := c.Find(ctx, uint32(n))
		t.address, t.instance, t.config = found.Address, uint32(n), map[string]string{"device": text}
		return t, err
	}
	host, err := wire.ResolveHost(text)
	if err != nil {
		return t, err
	}
	t.address, t.config = wire.Address{Host: host}, map[string]string{"address": text}
	// The highest number stands for whichever the device has.
	v, err := c.Read(ctx, t.address, wire.Reference{Object: wire.NewObjectID(wire.Device, wire.MaxInstance), Property: wire.ObjectIdentifier, Index: wire.NoIndex})
	if id, ok := firstOf(v).(wire.ObjectID); ok {
		t.instance = id.Instance()
		return t, nil
	}
	var refused wire.Error
	if errors.As(err, &refused) { // older devices don't know that number
		var found wire.IAm
		if found, err = findAt(ctx, c, t.address); err == nil {
			t.instance = found.Device.Instance()
		}
	}
	return t, err
}

// findAt asks everybody, and takes the answer from an address.
func findAt(ctx context.Context, c *wire.Client, at wire.Address) (wire.IAm, error) {
	found := make(chan wire.IAm, 1)
	defer c.Announcements(func(i wire.IAm) {
		if i.Address == at {
			select {
			case found <- i:
			default:
			}
		}
	})()
	if err := c.WhoIs(0, wire.MaxInstance); err != nil {
		return wire.IAm{}, err
	}
	select {
	case i := <-found:
		return i, nil
	case <-ctx.Done():
		return wire.IAm{}, fmt.Errorf("%s: %w to Who-Is", at, wire.ErrNoAnswer)
	}
}

// objects reads the list of a device's objects, one by one: the whole list seldom fits into a message.
func (t target) objects(ctx context.Context) (list []wire.ObjectID, err error) {
	device := wire.NewObjectID(wire.Device, t.instance)
	v, err := t.client.Read(ctx, t.address, wire.Reference{Object: device, Property: wire.ObjectList, Index: 0})
	if err != nil {
		return nil, fmt.Errorf("read the list of objects: %w", err)
	}
	count, _ := firstOf(v).(uint64)
	for i := 1; i <= int(min(count, 10000)); i++ {
		v, err := t.client.Read(ctx, t.address, wire.Reference{Object: device, Property: wire.ObjectList, Index: i})
		if err != nil {
			return nil, fmt.Errorf("read object %d of %d: %w", i, count, err)
		}
		if id, ok := firstOf(v).(wire.ObjectID); ok && presentValues[id.Type()] != kindUnknown {
			list = append(list, id)
		}
	}
	return list, nil
}

// browseDevice writes a Device and a DeviceModel of a device's objects. Those whose name doesn't contain filter are left out.
func browseDevice(ctx context.Context, t target, filter, node string, out io.Writer, progress io.Writer) error {
	ids, err := t.objects(ctx)
	if err != nil {
		return err
	}
	f := cmd.FoundDevice{Name: t.text(ctx, wire.NewObjectID(wire.Device, t.instance), wire.ObjectName), Node: node, Protocol: "bacnet", Config: t.config}
	for n, id := range ids {
		if n%50 == 49 {
			_, _ = fmt.Fprintf(progress, "%d of %d objects read\n", n+1, len(ids))
		}
		name := t.text(ctx, id, wire.ObjectName)
		if filter != "" && !strings.Contains(strings.ToLower(name), strings.ToLower(filter)) {
			continue
		}
		f.Properties = append(f.Properties, t.property(ctx, id, name))
	}
	if len(f.Properties) == 0 {
		return fmt.Errorf("%s has no object with a present value whose name contains %q", t.address, filter)
	}
	return cmd.WriteManifests(out, f)
}

func (t target) read(ctx context.Context, id wire.ObjectID, p wire.PropertyID) []any {
	v, err := t.client.Read(ctx, t.address, wire.Reference{Object: id, Property: p, Index: wire.NoIndex})
	if err != nil {
		return nil
	}
	return v
}

func (t target) text(ctx context.Context, id wire.ObjectID, p wire.PropertyID) string {
	text, _ := firstOf(t.read(ctx, id, p)).(string)
	return text
}

// property says what an object is as a property of a model. Outputs and values can be written.
func (t target) property(ctx context.Context, id wire.ObjectID, name string) cmd.FoundProperty {
	p := cmd.FoundProperty{Name: name, Type: "string", Config: map[string]string{"object": id.String()}}
	if name == "" {
		p.Name = id.String()
	}
	switch id.Type() {
	case wire.AnalogOutput, wire.AnalogValue, wire.BinaryOutput, wire.BinaryValue, wire.MultiStateOutput, wire.MultiStateValue,
		wire.LargeAnalogValue, wire.IntegerValue, wire.PositiveIntegerValue, wire.CharacterStringValue, wire.LightingOutput:
		p.Writable = true
	}
	if unit, ok := firstOf(t.read(ctx, id, wire.Units)).(wire.Enumerated); ok {
		p.Unit = wire.UnitText(unit)
	}
	switch presentValues[id.Type()] {
	case kindReal:
		p.Type = "float"
	case kindDouble:
		p.Type = "double"
	case kindSigned, kindUnsigned:
		p.Type = "int"
	case kindEnum:
		p.Enum = []string{"inactive", "active"}
	}
	if p.Writable && (p.Type == "float" || p.Type == "double") {
		p.Minimum, p.Maximum = t.number(ctx, id, wire.MinPresentValue), t.number(ctx, id, wire.MaxPresentValue)
	}
	if states := t.read(ctx, id, wire.StateText); len(states) > 0 {
		p.Type = "string"
		for i, s := range states {
			text, _ := s.(string)
			value := cmd.FitName(text, "state"+strconv.Itoa(i+1))
			if slices.Contains(p.Enum, value) {
				value += "-" + strconv.Itoa(i+1)
			}
			number := strconv.Itoa(i + 1)
			p.Enum = append(p.Enum, value)
			p.Words = append(p.Words, cmd.FoundWord{Value: value, Read: []string{number}, Write: number})
		}
	}
	return p
}

func (t target) number(ctx context.Context, id wire.ObjectID, p wire.PropertyID) *float64 {
	if v, ok := firstOf(t.read(ctx, id, p)).(float32); ok && v > -1e30 && v < 1e30 {
		n, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'f', -1, 32), 64)
		if err == nil {
			return &n
		}
	}
	return nil
}
