// SPDX-License-Identifier: Apache-2.0

// Package bacnet is the discovery handler for BACnet/IP: it asks by Who-Is which devices there are, hears what they broadcast, and reads
// who each is.
//
// It never writes, and has no port that a mapper needs: answers come to a port of its own, and broadcasts to sockets that hear nothing else.
package bacnet

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/topics/backoff"
)

// Program is the handler.
var Program = handler.Program{
	Name: "bacnet", Short: "Finds BACnet/IP devices by Who-Is", Shared: true,
	New: func(env handler.Env) handler.Handler { return deviceFinder{env.Log} },
}

// details are the discoveryDetails.
type details struct {
	// Addresses are those that are asked: broadcast addresses of subnets, or devices. None: the broadcast addresses of the host's interfaces.
	Addresses []string `yaml:"addresses"`
	// BBMD is the host that passes the question on to other subnets.
	BBMD string `yaml:"bbmd"`
	// Devices are the numbers that are looked for, 1000-1999.
	Devices string `yaml:"devices"`
	// Interval is the time from the end of a look to the next.
	Interval time.Duration `yaml:"interval"`
	// Wait is how long answers to Who-Is are waited for.
	Wait time.Duration `yaml:"wait"`
	// Timeout is for an answer to what a device is asked.
	Timeout time.Duration `yaml:"timeout"`
	// Filter has globs for properties.
	Filter network.Filter `yaml:"filter"`

	asked     []netip.AddrPort
	low, high uint32
}

const maxAddresses = 256

func parseDetails(text string) (d details, err error) {
	d = details{Interval: 5 * time.Minute, Wait: 3 * time.Second, Timeout: 3 * time.Second, high: wire.MaxInstance}
	if err := handler.Details(text, &d); err != nil {
		return d, err
	}
	bad := func(format string, args ...any) error {
		return handler.InvalidArgument("discoveryDetails: "+format, args...)
	}
	for _, limit := range []struct {
		field           string
		value, low, top time.Duration
	}{
		{"interval", d.Interval, time.Second, 24 * time.Hour}, {"wait", d.Wait, 100 * time.Millisecond, time.Minute}, {"timeout", d.Timeout, 10 * time.Millisecond, time.Minute},
	} {
		if limit.value < limit.low || limit.value > limit.top {
			return d, bad("%s: %s: must be from %s to %s", limit.field, limit.value, limit.low, limit.top)
		}
	}
	if len(d.Addresses) > maxAddresses {
		return d, bad("addresses: has %d entries, at most %d are asked", len(d.Addresses), maxAddresses)
	}
	for i, address := range d.Addresses {
		at, err := wire.ResolveHost(address)
		if err != nil {
			return d, bad("addresses[%d]: %q: must be a host or a broadcast address, such as 10.0.0.255 or 10.0.0.9:47808", i, address)
		}
		d.asked = append(d.asked, at)
	}
	if d.Devices != "" {
		from, to, ranged := strings.Cut(d.Devices, "-")
		if !ranged {
			to = from
		}
		low, err1 := strconv.ParseUint(strings.TrimSpace(from), 10, 32)
		high, err2 := strconv.ParseUint(strings.TrimSpace(to), 10, 32)
		if err1 != nil || err2 != nil || low > high || high > wire.MaxInstance {
			return d, bad("devices: %q: must be a number or a range of numbers up to %d, such as 1000-1999", d.Devices, wire.MaxInstance)
		}
		d.low, d.high = uint32(low), uint32(high)
	}
	return d, d.Filter.Check()
}

// deviceFinder is the handler.
type deviceFinder struct{ log zerolog.Logger }

// Discover implements handler.Handler.
func (f deviceFinder) Discover(ctx context.Context, text string, _ map[string][]byte, found func([]handler.Device)) error {
	d, err := parseDetails(text)
	if err != nil {
		return err
	}
	client, err := wire.NewClient(wire.Options{Listen: "0.0.0.0:0", BBMD: d.BBMD, Hear: wire.BroadcastAddresses(), Timeout: d.Timeout})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	look := &networkLook{details: d, client: client, known: map[wire.ObjectID]*foundDevice{}}
	return handler.RunEvery(ctx, d.Interval, func() error {
		if err := look.ask(ctx); err != nil {
			return err
		}
		if list := look.list(); len(list) > 0 { // those that are known already don't wait for the new ones
			found(list)
		}
		look.identify(ctx)
		if ctx.Err() == nil {
			handler.TellUser(ctx, look.problem())
			found(look.list())
		}
		return nil
	})
}

// networkLook is one call of Discover.
type networkLook struct {
	details details
	client  *wire.Client

	mu    sync.Mutex
	known map[wire.ObjectID]*foundDevice
	over  bool // there are more than are remembered
}

// foundDevice is a device that has said I-Am.
type foundDevice struct {
	wire.IAm
	others     []wire.Address // that say the same number
	missed     int            // looks in a row at which it was not heard
	asked      bool           // who it is
	identified time.Time      // when all that it says of that was read
	properties map[string]string
}

const (
	// mostMissed is how many looks in a row a device may be missing: answers to Who-Is are datagrams, and get lost.
	mostMissed = 3
	// identifyAgain is when a device is asked anew who it is. A serial line behind a router is slow.
	identifyAgain = 6 * time.Hour
)

// ask asks who is there, three times, and takes note of who answers.
func (l *networkLook) ask(ctx context.Context) error {
	heard := map[wire.ObjectID][]wire.IAm{}
	stop := l.client.Announcements(func(i wire.IAm) {
		if n := i.Device.Instance(); n < l.details.low || n > l.details.high {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(heard) < network.MaxDevices || heard[i.Device] != nil {
			if list := heard[i.Device]; len(list) < 8 && !slices.ContainsFunc(list, func(x wire.IAm) bool { return x.Address == i.Address }) {
				heard[i.Device] = append(list, i)
			}
		} else {
			l.over = true
		}
	})
	defer stop()
	for range 3 {
		if err := l.sendWhoIs(); err != nil {
			return err
		}
		if !backoff.Sleep(ctx, l.details.Wait/3) {
			return ctx.Err()
		}
	}
	stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, d := range l.known {
		if d.missed++; heard[id] == nil && d.missed >= mostMissed {
			delete(l.known, id)
		}
	}
	for id, list := range heard {
		slices.SortFunc(list, func(a, b wire.IAm) int { return strings.Compare(a.Address.String(), b.Address.String()) })
		d := l.known[id]
		if d == nil || d.Address != list[0].Address || d.Vendor != list[0].Vendor {
			d = &foundDevice{properties: map[string]string{}}
			l.known[id] = d
		}
		d.IAm, d.missed, d.others = list[0], 0, nil
		for _, other := range list[1:] {
			d.others = append(d.others, other.Address)
		}
	}
	return nil
}

// sendWhoIs asks all addresses. It fails if none can be asked.
func (l *networkLook) sendWhoIs() error {
	asked := l.details.asked
	if len(asked) == 0 && l.details.BBMD == "" {
		asked = wire.BroadcastAddresses()
	}
	err, sent := l.client.WhoIs(l.details.low, l.details.high), l.details.BBMD != ""
	for _, at := range asked {
		if failed := l.client.AskWho(at, l.details.low, l.details.high); failed != nil {
			err = failed
		} else {
			sent = true
		}
	}
	if sent {
		return nil
	}
	return err
}

// identities are the properties of device objects that become properties of what is found.
var identities = map[string]wire.PropertyID{
	"BACNET_NAME": wire.ObjectName, "BACNET_VENDOR": wire.VendorName, "BACNET_MODEL": wire.ModelName, "BACNET_FIRMWARE": wire.FirmwareVersion,
	"BACNET_LOCATION": wire.Location, "BACNET_DESCRIPTION": wire.Description,
}

// identify asks the devices who they are of whom that isn't known, eight at a time, those behind one router one after the other.
func (l *networkLook) identify(ctx context.Context) {
	l.mu.Lock()
	lines := map[string][]*foundDevice{}
	for _, d := range l.known {
		if d.missed == 0 && time.Since(d.identified) > identifyAgain {
			line := d.Address.Host.String()
			lines[line] = append(lines[line], d)
		}
	}
	l.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(8)
	for _, line := range lines {
		g.Go(func() error {
			for _, d := range line {
				d.identify(ctx, l.client)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// identify reads the device's properties. What it doesn't answer stays as it was, and is asked again at the next look.
func (d *foundDevice) identify(ctx context.Context, c *wire.Client) {
	d.asked = true
	for name, property := range identities {
		values, err := c.Read(ctx, d.Address, wire.Reference{Object: d.Device, Property: property, Index: wire.NoIndex})
		if errors.Is(err, wire.ErrNoAnswer) || ctx.Err() != nil {
			return
		}
		if len(values) == 1 {
			if text, ok := values[0].(string); ok {
				d.properties[name] = network.CleanText(strings.TrimSpace(text), 255)
			}
		}
	}
	d.identified = time.Now()
}

// list is what was found and asked who it is, with all properties, empty where the device doesn't say them.
func (l *networkLook) list() (list []handler.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, d := range l.known {
		if !d.asked {
			continue
		}
		number := strconv.FormatUint(uint64(id.Instance()), 10)
		p := map[string]string{
			"BACNET_DEVICE": number, "BACNET_ADDRESS": d.Address.Host.String(), "BACNET_NETWORK": "", "BACNET_MAC": hex.EncodeToString([]byte(d.Address.MAC)),
			"BACNET_VENDOR_ID": strconv.Itoa(d.Vendor),
		}
		if d.Address.Network != 0 {
			p["BACNET_NETWORK"] = strconv.Itoa(int(d.Address.Network))
		}
		for name := range identities {
			p[name] = d.properties[name]
		}
		if l.details.Filter.Takes(p) {
			list = append(list, handler.Device{ID: number, Properties: p})
		}
	}
	return network.SortUnique(list)
}

// problem is what the Configuration's user should know: several devices with one number, or too many.
func (l *networkLook) problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var several []string
	for id, d := range l.known {
		if len(d.others) > 0 {
			several = append(several, fmt.Sprintf("device %d is at %s, and at %s: a number must be unique, and the first counts", id.Instance(), d.Address, d.others[0]))
		}
	}
	slices.Sort(several)
	if l.over {
		several = append(several, fmt.Sprintf("there are more than %d devices: look for some of them with devices: 1000-1999", network.MaxDevices))
	}
	return strings.Join(several[:min(3, len(several))], "; ")
}
