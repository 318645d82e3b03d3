// SPDX-License-Identifier: Apache-2.0

// Package mdns is the discovery handler for services that announce themselves by DNS-SD over multicast DNS (RFC 6762, RFC 6763): printers, cameras,
// gateways, Shelly and ESPHome devices. It asks on every interface, and hears what is announced between.
//
// It never answers a query, and announces nothing.
package mdns

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
)

// Program is the handler.
var Program = handler.Program{
	Name: "mdns", Short: "Finds services that announce themselves by mDNS and DNS-SD", Shared: true,
	New: func(env handler.Env) handler.Handler {
		return serviceBrowser{env.Log, address4, address6, network.Join}
	},
}

// Where services announce themselves.
const (
	address4 = "224.0.0.251:5353"
	address6 = "[ff02::fb]:5353"
)

// details are the discoveryDetails.
type details struct {
	// Services are those to look for, such as _http._tcp.
	Services []string `yaml:"services"`
	// Interfaces are globs of the interfaces on which to ask; none: all.
	Interfaces []string `yaml:"interfaces"`
	// Interval is the time between two queries.
	Interval time.Duration `yaml:"interval"`
	// Filter has globs for properties.
	Filter network.Filter `yaml:"filter"`
}

var serviceType = regexp.MustCompile(`^(_[A-Za-z0-9-]{1,15}\._sub\.)?_[A-Za-z0-9-]{1,15}\._(tcp|udp)$`)

func parseDetails(text string) (d details, err error) {
	d.Interval = time.Minute
	if err := handler.Details(text, &d); err != nil {
		return d, err
	}
	if len(d.Services) == 0 || len(d.Services) > 32 {
		return d, handler.InvalidArgument("discoveryDetails: services: has %d entries, must have 1 to 32, such as _http._tcp", len(d.Services))
	}
	for i, s := range d.Services {
		d.Services[i] = strings.TrimSuffix(strings.TrimSuffix(s, "."), ".local")
		if !serviceType.MatchString(d.Services[i]) {
			return d, handler.InvalidArgument("discoveryDetails: services[%d]: %q is no type of services, such as _http._tcp", i, s)
		}
	}
	for i, glob := range d.Interfaces {
		if _, err := path.Match(glob, ""); err != nil {
			return d, handler.InvalidArgument("discoveryDetails: interfaces[%d]: %q: %v", i, glob, err)
		}
	}
	if d.Interval < time.Second {
		return d, handler.InvalidArgument("discoveryDetails: interval: %s is shorter than 1s", d.Interval)
	}
	return d, d.Filter.Check()
}

// serviceBrowser is the handler.
type serviceBrowser struct {
	log                zerolog.Logger
	address4, address6 string
	join               network.JoinFunc
}

// settleTime is how long the handler waits for more answers before it reports its list, and before it asks for missing records.
const settleTime = 250 * time.Millisecond

// Discover implements handler.Handler.
func (b serviceBrowser) Discover(ctx context.Context, text string, _ map[string][]byte, found func([]handler.Device)) error {
	d, err := parseDetails(text)
	if err != nil {
		return err
	}
	group, err := b.join(ctx, b.address4, b.address6, d.Interfaces, true)
	if err != nil {
		return err
	}
	defer group.Close()
	c := newCache(d.Services)
	dropped := network.NewDropCounter(b.log)
	ask, pause := time.NewTimer(0), time.Second
	say, soon := time.NewTimer(time.Second), false // the first list, also of nothing
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ask.C:
			if err := group.Send(encodeQuery(c.questions())); err != nil {
				return fmt.Errorf("can't ask for services: %w", err)
			}
			pause = min(2*pause, d.Interval) // RFC 6762, 5.2: the first two queries are a second apart, then each twice as far
			ask.Reset(pause)
		case packet, open := <-group.Packets:
			if !open {
				return group.Err()
			}
			if packet.From.Port != 5353 && b.address4 == address4 {
				continue // no response by multicast: RFC 6762, 11
			}
			changed, err := c.take(packet.Data, time.Now())
			if err != nil {
				dropped.Add(packet.From.IP.String(), err)
			} else if changed && !soon {
				soon = true
				say.Reset(settleTime)
			}
		case <-say.C:
			now := time.Now()
			next := 10 * time.Second // for what has expired
			list := slices.DeleteFunc(c.devices(now), func(dev handler.Device) bool { return !d.Filter.Takes(dev.Properties) })
			found(network.SortUnique(list))
			if missing := c.missing(now); len(missing) > 0 {
				_ = group.Send(encodeQuery(missing)) // or else at the next query
				next = time.Second
			}
			soon = false
			say.Reset(next)
		}
	}
}

// The bounds of what is remembered.
const (
	maxInstances = network.MaxDevices
	maxHosts     = network.MaxDevices
	maxAddresses = 16 // of one host
	maxTexts     = 64 // of one service
	maxText      = 1024
)

// serviceInstance is a service that was announced.
type serviceInstance struct {
	name    domainName
	service string
	expires time.Time
	host    domainName
	port    uint16
	located time.Time // until when host and port hold
	text    []string
	tries   int // queries for the rest
}

// cache is what is known of services and hosts. Only one goroutine uses it.
type cache struct {
	services  map[string]string // as asked for, by key
	ordered   []string
	instances map[string]*serviceInstance
	hosts     map[string]map[netip.Addr]time.Time
}

func newCache(services []string) *cache {
	c := &cache{services: map[string]string{}, ordered: services, instances: map[string]*serviceInstance{}, hosts: map[string]map[netip.Addr]time.Time{}}
	for _, s := range services {
		c.services[serviceName(s).key()] = s
	}
	return c
}

func serviceName(service string) domainName { return append(strings.Split(service, "."), "local") }

func (c *cache) questions() (list []question) {
	for _, s := range c.ordered {
		list = append(list, question{serviceName(s), typePTR})
	}
	return list
}

// take takes a datagram. changed says that it has something about a service that is looked for.
func (c *cache) take(data []byte, now time.Time) (changed bool, err error) {
	records, err := parseResponse(data)
	if err != nil {
		return false, err
	}
	// Records that announce services are taken first, whatever their order in the message.
	order := map[uint16]int{typePTR: 1, typeSRV: 2, typeTXT: 2, typeA: 3, typeAAAA: 3}
	slices.SortStableFunc(records, func(a, b resourceRecord) int { return order[a.kind] - order[b.kind] })
	flushed := map[string]bool{}
	for _, r := range records {
		did := false
		switch r.kind {
		case typePTR:
			did, err = c.pointer(r, now)
		case typeSRV, typeTXT:
			did = c.describe(r, now)
		case typeA, typeAAAA:
			did = c.locate(r, now, flushed)
		}
		if err != nil {
			return changed, err
		}
		changed = changed || did
	}
	return changed, nil
}

func expiresAt(ttl uint32, now time.Time) time.Time {
	return now.Add(time.Duration(min(ttl, 86400)) * time.Second)
}

func (c *cache) pointer(r resourceRecord, now time.Time) (bool, error) {
	service, asked := c.services[r.name.key()]
	if !asked || len(r.target) < 2 {
		return false, nil
	}
	key := r.target.key()
	known := c.instances[key]
	switch {
	case r.ttl == 0: // a goodbye
		delete(c.instances, key)
		return known != nil, nil
	case known != nil:
		known.expires, known.tries = expiresAt(r.ttl, now), 0
		return false, nil
	case len(c.instances) >= maxInstances:
		return false, fmt.Errorf("more than %d services are announced", maxInstances)
	}
	c.instances[key] = &serviceInstance{name: r.target, service: service, expires: expiresAt(r.ttl, now)}
	return true, nil
}

func (c *cache) describe(r resourceRecord, now time.Time) bool {
	i := c.instances[r.name.key()]
	if i == nil {
		return false
	}
	if r.kind == typeTXT {
		if len(r.text) > maxTexts {
			r.text = r.text[:maxTexts]
		}
		changed := !slices.Equal(i.text, r.text)
		i.text = r.text
		return changed
	}
	if r.ttl == 0 {
		i.located = time.Time{}
		return true
	}
	changed := i.port != r.port || !slices.Equal(i.host, r.target) || i.located.Before(now)
	i.host, i.port, i.located, i.tries = r.target, r.port, expiresAt(r.ttl, now), 0
	if key := r.target.key(); c.hosts[key] == nil && len(c.hosts) < maxHosts {
		c.hosts[key] = map[netip.Addr]time.Time{}
	}
	return changed
}

// locate takes an address of a host of a service that is looked for.
func (c *cache) locate(r resourceRecord, now time.Time, flushed map[string]bool) bool {
	key := r.name.key()
	addresses := c.hosts[key]
	if addresses == nil {
		return false
	}
	before := len(addresses)
	_, known := addresses[r.address]
	if mark := key + " " + strconv.Itoa(int(r.kind)); r.flush && !flushed[mark] {
		flushed[mark] = true
		maps.DeleteFunc(addresses, func(a netip.Addr, _ time.Time) bool { return a.Is4() == r.address.Is4() && a != r.address })
	}
	if r.ttl == 0 {
		delete(addresses, r.address)
	} else if known || len(addresses) < maxAddresses {
		addresses[r.address] = expiresAt(r.ttl, now)
	}
	return !known || len(addresses) != before
}

// missing returns questions for the missing addresses of services. Each is asked a few times.
func (c *cache) missing(now time.Time) (list []question) {
	const most, tries = 50, 3
	for _, key := range slices.Sorted(maps.Keys(c.instances)) {
		i := c.instances[key]
		if len(list) >= most || i.tries >= tries {
			continue
		}
		switch {
		case i.located.Before(now):
			list = append(list, question{i.name, typeSRV}, question{i.name, typeTXT})
		case len(c.hosts[i.host.key()]) == 0:
			list = append(list, question{i.host, typeA}, question{i.host, typeAAAA})
		default:
			continue
		}
		i.tries++
	}
	return list
}

// devices returns the services whose addresses are known. Expired records are removed.
func (c *cache) devices(now time.Time) (list []handler.Device) {
	maps.DeleteFunc(c.instances, func(_ string, i *serviceInstance) bool { return i.expires.Before(now) })
	used := map[string]bool{}
	for _, i := range c.instances {
		used[i.host.key()] = true
	}
	maps.DeleteFunc(c.hosts, func(key string, addresses map[netip.Addr]time.Time) bool {
		maps.DeleteFunc(addresses, func(_ netip.Addr, until time.Time) bool { return until.Before(now) })
		return !used[key]
	})
	for _, i := range c.instances {
		addresses := slices.SortedFunc(maps.Keys(c.hosts[i.host.key()]), func(a, b netip.Addr) int { return a.Compare(b) })
		if i.located.Before(now) || len(addresses) == 0 {
			continue
		}
		list = append(list, handler.Device{ID: network.CleanText(i.name.String(), 1024), Properties: i.properties(addresses)})
	}
	return list
}

func (i *serviceInstance) properties(addresses []netip.Addr) map[string]string {
	var texts []string
	for _, a := range addresses { // IPv4 first
		texts = append(texts, a.String())
	}
	p := map[string]string{
		"MDNS_SERVICE": i.service, "MDNS_NAME": network.CleanText(i.name[0], maxText), "MDNS_HOST": network.CleanText(i.host.String(), maxText),
		"MDNS_PORT": strconv.Itoa(int(i.port)), "MDNS_ADDRESS": texts[0], "MDNS_ADDRESSES": strings.Join(texts, ","),
	}
	for _, text := range i.text {
		key, value, _ := strings.Cut(text, "=")
		if property := "MDNS_TXT_" + network.PropertyName(key); key != "" && p[property] == "" {
			p[property] = network.CleanText(value, maxText)
		}
	}
	return p
}
