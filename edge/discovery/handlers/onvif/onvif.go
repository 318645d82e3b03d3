// SPDX-License-Identifier: Apache-2.0

// Package onvif is the discovery handler for ONVIF devices, as Akri has it: it probes by WS-Discovery on every interface and
// filters by IP address, MAC address, scope and UUID. With credentials for a device it reads the device's information.
//
// It never sends a request to an address from which no answer came, and a password only as a digest.
package onvif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
)

// Program is the handler.
var Program = handler.Program{
	Name: "onvif", Short: "Finds ONVIF cameras by WS-Discovery", Shared: true,
	New: func(env handler.Env) handler.Handler {
		return cameraProber{
			log: env.Log, address4: "239.255.255.250:3702", address6: "[ff02::c]:3702", interval: 10 * time.Second, arp: "/proc/net/arp", join: network.Join,
		}
	},
}

// details are the discoveryDetails, by the names that Akri's have.
type details struct {
	IPAddresses  *network.List `yaml:"ipAddresses"`
	MACAddresses *network.List `yaml:"macAddresses"`
	Scopes       *network.List `yaml:"scopes"`
	UUIDs        *network.List `yaml:"uuids"`
	// Timeout is how long answers to a probe are waited for, in seconds.
	Timeout int `yaml:"discoveryTimeoutSeconds"`
	// Interfaces are globs of the interfaces on which to ask; none: all.
	Interfaces []string `yaml:"interfaces"`
}

func parseDetails(text string) (d details, err error) {
	// The first Akri had them below onvif.
	all := struct {
		details `yaml:",inline"`
		Onvif   *details `yaml:"onvif"`
	}{details: details{Timeout: 1}}
	if err := handler.Details(text, &all); err != nil {
		return d, err
	}
	if d = all.details; all.Onvif != nil {
		if d = *all.Onvif; d.Timeout == 0 {
			d.Timeout = 1
		}
	}
	if d.Timeout < 1 || d.Timeout > 60 {
		return d, handler.InvalidArgument("discoveryDetails: discoveryTimeoutSeconds: %d: must be from 1 to 60", d.Timeout)
	}
	return d, errors.Join(d.IPAddresses.Check("ipAddresses"), d.MACAddresses.Check("macAddresses"), d.Scopes.Check("scopes"), d.UUIDs.Check("uuids"))
}

// cameraProber is the handler.
type cameraProber struct {
	log                zerolog.Logger
	address4, address6 string
	interval           time.Duration
	arp                string // the kernel's table of neighbours
	join               network.JoinFunc
}

// The bounds of a camera's announcement.
const (
	maxText   = 1024
	maxMisses = 3 // unanswered probes after which a camera is gone
	maxTries  = 3 // to read a camera's device information
)

// camera is a device that has answered.
type camera struct {
	match    cameraMatch
	address  netip.Addr // that the answer came from
	service  string     // URL
	missed   int
	tried    int
	identity map[string]string // nil: not known
}

// discoverCall is one call of Discover. Only its goroutine uses it.
type discoverCall struct {
	cameraProber
	details     details
	credentials credentials
	cameras     map[string]*camera
	dropped     *network.DropCounter
	http        *http.Client
	asking      *network.Group
	listening   *network.Group // nil: announcements can't be heard
}

// Discover implements handler.Handler.
func (p cameraProber) Discover(ctx context.Context, text string, properties map[string][]byte, found func([]handler.Device)) error {
	d, err := parseDetails(text)
	if err != nil {
		return err
	}
	l := &discoverCall{cameraProber: p, details: d, cameras: map[string]*camera{}, dropped: network.NewDropCounter(p.log), http: &http.Client{
		Timeout: 3 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	defer l.http.CloseIdleConnections()
	if l.credentials, err = parseCredentials(properties); err != nil {
		return err
	}
	if l.asking, err = p.join(ctx, p.address4, p.address6, d.Interfaces, false); err != nil {
		return err
	}
	defer l.asking.Close()
	defer l.deafen()
	for {
		l.listen(ctx)
		if err := l.probe(ctx); err != nil || ctx.Err() != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		l.identify(ctx)
		if ctx.Err() != nil {
			return nil
		}
		found(l.devices())
		if more, err := l.rest(ctx, found); !more {
			return err
		}
	}
}

// listen has the multicast port heard, on which devices announce that they come and go, and on interfaces that are new. If that is not
// possible, because another program uses the port exclusively, changes are noticed at the next probe.
func (l *discoverCall) listen(ctx context.Context) {
	if l.listening == nil {
		l.listening, _ = l.join(ctx, l.address4, l.address6, l.details.Interfaces, true)
	}
	if l.listening != nil && l.listening.Listen() != nil {
		l.deafen()
	}
}

func (l *discoverCall) deafen() {
	if l.listening != nil {
		l.listening.Close()
		l.listening = nil
	}
}

// announced are the announcements of devices.
func (l *discoverCall) announced() <-chan network.Packet {
	if l.listening == nil {
		return nil
	}
	return l.listening.Packets
}

// probe asks all cameras to answer, and takes the answers.
func (l *discoverCall) probe(ctx context.Context) error {
	for _, c := range l.cameras {
		c.missed++
	}
	id, message := probeMessage()
	if err := l.asking.Send(message); err != nil {
		return fmt.Errorf("can't probe for cameras: %w", err)
	}
	// A datagram may be lost: it is sent twice, as the standard says, and answered once.
	again, end := time.NewTimer(150*time.Millisecond), time.NewTimer(time.Duration(l.details.Timeout)*time.Second)
	defer again.Stop()
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-end.C:
			maps.DeleteFunc(l.cameras, func(_ string, c *camera) bool { return c.missed >= maxMisses })
			return nil
		case <-again.C:
			_ = l.asking.Send(message)
		case packet, open := <-l.asking.Packets:
			if !open {
				return l.asking.Err()
			}
			if err := l.take(packet, id); err != nil {
				l.dropped.Add(packet.From.IP.String(), err)
			}
		}
	}
}

// rest waits for the next probe, which a new camera's announcement brings forward. There is none if ctx has ended, which is no error, or no
// answer could be received.
func (l *discoverCall) rest(ctx context.Context, found func([]handler.Device)) (more bool, err error) {
	next := time.NewTimer(l.interval)
	defer next.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-next.C:
			return true, nil
		case _, open := <-l.asking.Packets: // a late answer: it comes again
			if !open {
				return false, l.asking.Err()
			}
		case packet, open := <-l.announced():
			if !open {
				l.log.Warn().Err(l.listening.Err()).Msg("announcements can't be heard until the next probe")
				l.deafen()
				continue
			}
			m, err := parseMessage(packet.Data)
			switch {
			case err != nil:
				l.dropped.Add(packet.From.IP.String(), err)
			case m.hello && l.cameras[m.matches[0].uuid] == nil && time.Since(began) > time.Second: // a flood of announcements must not cause a flood of probes
				return true, nil
			case m.bye:
				c := l.cameras[m.matches[0].uuid]
				if from, _ := netip.AddrFromSlice(packet.From.IP); c != nil && c.address == from.Unmap() {
					delete(l.cameras, m.matches[0].uuid)
					found(l.devices())
				}
			}
		}
	}
}

// take takes an answer to the probe with this ID.
func (l *discoverCall) take(packet network.Packet, id string) error {
	m, err := parseMessage(packet.Data)
	if err != nil {
		return err
	}
	if m.relatesTo != id {
		return nil // to an earlier probe, or another's
	}
	from, _ := netip.AddrFromSlice(packet.From.IP)
	from = from.Unmap()
	for _, match := range m.matches {
		c := l.cameras[match.uuid]
		if c == nil {
			if len(l.cameras) >= network.MaxDevices {
				return fmt.Errorf("more than %d cameras have answered", network.MaxDevices)
			}
			c = &camera{}
			l.cameras[match.uuid] = c
		}
		if !maps.Equal(c.match.scopes, match.scopes) || !slices.Equal(c.match.addresses, match.addresses) {
			c.identity, c.tried = nil, 0
		}
		c.match, c.address, c.missed = match, from, 0
		c.service = match.service(from)
	}
	return nil
}

// service returns the URL of the camera's device service: of several, the one at the address that the answer came from.
func (m cameraMatch) service(from netip.Addr) string {
	for _, address := range m.addresses {
		if urlHost(address) == from {
			return address
		}
	}
	return m.addresses[0]
}

func urlHost(address string) netip.Addr {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return netip.Addr{}
	}
	ip, _ := netip.ParseAddr(u.Hostname())
	return ip.Unmap()
}

// identify reads the device information of cameras with credentials, but only of those that have answered from the address of their
// service.
func (l *discoverCall) identify(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(8)
	for _, c := range l.cameras {
		credential, known := l.credentials.of(c.match.uuid)
		if !known || c.identity != nil || c.tried >= maxTries || c.missed > 0 || urlHost(c.service) != c.address || !l.wanted(c) {
			continue
		}
		c.tried++
		g.Go(func() error {
			identity, err := l.ask(ctx, c.service, credential)
			if err != nil {
				l.log.Warn().Err(err).Str("camera", c.match.uuid).Msg("a camera's device information can't be read")
				return nil
			}
			c.identity = identity
			return nil
		})
	}
	_ = g.Wait()
}

// wanted reports whether a camera passes the filters that need no request to it.
func (l *discoverCall) wanted(c *camera) bool {
	within := func(texts ...string) func(string) bool {
		return func(item string) bool {
			return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(item)) })
		}
	}
	return l.details.IPAddresses.Takes(func(item string) bool { return item == c.address.String() }) && l.details.UUIDs.Takes(within(c.match.uuid)) &&
		l.details.Scopes.Takes(within(slices.Collect(maps.Keys(c.match.scopes))...))
}

// devices are the cameras that pass the filters.
func (l *discoverCall) devices() (list []handler.Device) {
	neighbours := l.neighbours()
	for uuid, c := range l.cameras {
		mac := cmp.Or(c.identity["ONVIF_DEVICE_MAC_ADDRESS"], neighbours[c.address.String()])
		if !l.wanted(c) || !l.details.MACAddresses.Takes(func(item string) bool { return sameMAC(item, mac) }) {
			continue
		}
		p := map[string]string{
			"ONVIF_DEVICE_SERVICE_URL": c.service, "ONVIF_DEVICE_IP_ADDRESS": c.address.String(), "ONVIF_DEVICE_UUID": uuid,
		}
		maps.Copy(p, c.match.described())
		maps.Copy(p, c.identity)
		if mac != "" {
			p["ONVIF_DEVICE_MAC_ADDRESS"] = mac
		}
		list = append(list, handler.Device{ID: uuid, Properties: p})
	}
	return network.SortUnique(list)
}

func sameMAC(a, b string) bool {
	plain := func(text string) string { return strings.ToLower(strings.NewReplacer(":", "", "-", "").Replace(text)) }
	return a != "" && plain(a) == plain(b)
}

// neighbours are the MAC addresses of the hosts of the networks that this host is in, by their IP addresses.
func (l *discoverCall) neighbours() map[string]string {
	text, err := os.ReadFile(l.arp)
	if err != nil {
		return nil // another system, or not allowed
	}
	table := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 6 && strings.Count(f[3], ":") == 5 && f[3] != "00:00:00:00:00:00" {
			table[f[0]] = f[3]
		}
	}
	return table
}
