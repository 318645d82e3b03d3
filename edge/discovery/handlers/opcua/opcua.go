// SPDX-License-Identifier: Apache-2.0

// Package opcua is the discovery handler for OPC UA servers, as Akri has it: it asks servers and local discovery servers at given URLs which
// servers they know (FindServers), and filters by application names.
//
// It asks only what a server answers without security. Where it is to identify servers it asks each found one for the security that it offers and, over an anonymous
// session without security, if there can be one, for its product; it never signs in, browses or writes.
package opcua

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// Program is the handler.
var Program = handler.Program{
	Name: "opcua", Short: "Finds OPC UA servers at given URLs and discovery servers", Shared: true,
	New: func(env handler.Env) handler.Handler {
		return serverFinder{log: env.Log, interval: 10 * time.Second, timeout: 5 * time.Second}
	},
}

// details are the discoveryDetails, by the names that Akri's have.
type details struct {
	Method *struct {
		Standard *struct {
			URLs []string `yaml:"discoveryUrls"`
		} `yaml:"standard"`
	} `yaml:"opcuaDiscoveryMethod"`
	ApplicationNames *network.List `yaml:"applicationNames"`
	// Identify has each server asked what it is.
	Identify bool `yaml:"identify"`
	// Filter has globs for properties.
	Filter network.Filter `yaml:"filter"`

	urls []*url.URL
}

// defaultURL is that of the local discovery server of this host.
const (
	defaultURL = "opc.tcp://localhost:4840/"
	maxAsked   = 256
	maxText    = 4096
)

func parseDetails(text string) (d details, err error) {
	// The first Akri had them below opcua.
	var all struct {
		details `yaml:",inline"`
		Opcua   *details `yaml:"opcua"`
	}
	if err := handler.Details(text, &all); err != nil {
		return d, err
	}
	d = all.details
	if all.Opcua != nil {
		d = *all.Opcua
	}
	if d.Method == nil || d.Method.Standard == nil {
		return d, handler.InvalidArgument("discoveryDetails: opcuaDiscoveryMethod.standard: is required; {} asks %s", defaultURL)
	}
	list := d.Method.Standard.URLs
	if len(list) == 0 {
		list = []string{defaultURL}
	}
	if len(list) > maxAsked {
		return d, handler.InvalidArgument("discoveryDetails: opcuaDiscoveryMethod.standard.discoveryUrls: has %d entries, at most %d are asked", len(list), maxAsked)
	}
	for i, text := range list {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "opc.tcp" || u.Hostname() == "" || len(text) > maxText {
			return d, handler.InvalidArgument("discoveryDetails: opcuaDiscoveryMethod.standard.discoveryUrls[%d]: %q is no URL such as opc.tcp://10.0.0.5:4840/", i, text)
		}
		d.urls = append(d.urls, u)
	}
	if len(d.Filter) > 0 && !d.Identify {
		return d, handler.InvalidArgument("discoveryDetails: filter: takes identify: true, by which there are properties to filter by")
	}
	return d, cmp.Or(d.ApplicationNames.Check("applicationNames"), d.Filter.Check())
}

// serverFinder is the handler.
type serverFinder struct {
	log               zerolog.Logger
	interval, timeout time.Duration
}

// Discover implements handler.Handler.
func (f serverFinder) Discover(ctx context.Context, text string, _ map[string][]byte, found func([]handler.Device)) error {
	d, err := parseDetails(text)
	if err != nil {
		return err
	}
	dropped := network.NewDropCounter(f.log)
	known := identities{}
	return handler.RunEvery(ctx, f.interval, func() error {
		answers := make([][]wire.Application, len(d.urls))
		var g errgroup.Group
		g.SetLimit(8)
		for i, u := range d.urls {
			g.Go(func() error {
				asking, cancel := context.WithTimeout(ctx, f.timeout)
				defer cancel()
				list, err := wire.FindServers(asking, u.String())
				if err != nil && ctx.Err() == nil {
					dropped.Add(u.Redacted(), err) // the others go on
				}
				answers[i] = list
				return nil
			})
		}
		_ = g.Wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		lookups, cancel := context.WithTimeout(ctx, f.timeout)
		defer cancel()
		hosts := hostCache{}
		var devices []handler.Device
		for i, list := range answers {
			itself := !slices.ContainsFunc(list, func(a wire.Application) bool { return a.Kind == wire.KindDiscoveryServer })
			for _, a := range list {
				if d.ApplicationNames.Takes(func(item string) bool { return item == a.Name }) {
					devices = append(devices, foundServers(lookups, a, d.urls[i], itself, hosts)...)
				}
			}
		}
		devices = network.SortUnique(devices)
		devices = devices[:min(len(devices), network.MaxDevices)]
		if d.Identify {
			devices = known.add(ctx, devices, f.timeout, dropped)
			devices = slices.DeleteFunc(devices, func(x handler.Device) bool { return !d.Filter.Takes(x.Properties) })
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		found(devices)
		return nil
	})
}

// foundServers is the server that an application is, if it is one and says where. Its ID depends on what it says and where it was asked, and not on DNS.
// itself says that no discovery server was asked.
func foundServers(ctx context.Context, a wire.Application, asked *url.URL, itself bool, known hostCache) []handler.Device {
	if a.Kind != wire.KindServer && a.Kind != wire.KindClientAndServer || len(a.URLs) == 0 {
		return nil
	}
	address := a.URLs[0]
	if i := slices.IndexFunc(a.URLs, func(u string) bool { return strings.HasPrefix(u, "opc.tcp://") }); i >= 0 {
		address = a.URLs[i]
	}
	id := serverURL(address, asked, itself)
	address = known.reachable(ctx, id, asked)
	if id == "" || id != network.CleanText(id, 1024) || address != network.CleanText(address, 1024) {
		return nil
	}
	p := map[string]string{"OPCUA_DISCOVERY_URL": address}
	for name, value := range map[string]string{"APPLICATION_NAME": a.Name, "APPLICATION_URI": a.URI, "PRODUCT_URI": a.Product} {
		if value != "" {
			p["OPCUA_"+name] = network.CleanText(value, maxText)
		}
	}
	return []handler.Device{{ID: id, Properties: p}}
}

// serverURL is the URL that a server says, with the host that was asked if the server's own tells it from no other: an address of loopback, or, of a
// server that was asked itself, a name without a dot, which it may share with all of its series. A host that was asked at loopback tells even less.
func serverURL(address string, asked *url.URL, itself bool) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || isThisHost(asked.Hostname()) {
		return address
	}
	if _, err := netip.ParseAddr(u.Hostname()); isThisHost(u.Hostname()) || itself && err != nil && !strings.Contains(u.Hostname(), ".") {
		return withHostOf(u, asked)
	}
	return address
}

// isThisHost reports whether a host means the one that uses it.
func isThisHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && (a.Unmap().IsLoopback() || a.IsUnspecified())
}

// withHostOf is a URL with the host that was asked.
func withHostOf(u, asked *url.URL) string {
	other := *u
	other.Host = strings.TrimSuffix(net.JoinHostPort(asked.Hostname(), u.Port()), ":") // without a port
	return other.String()
}

// hostCache caches whether host names can be resolved.
type hostCache map[string]bool

// reachable is a server's URL, with the host that was asked if its own can't be resolved: many servers name themselves by a name that no
// DNS has.
func (h hostCache) reachable(ctx context.Context, address string, asked *url.URL) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return address
	}
	ok, known := h[u.Hostname()]
	if !known {
		_, err := net.DefaultResolver.LookupHost(ctx, u.Hostname())
		ok = err == nil
		h[u.Hostname()] = ok
	}
	if ok {
		return address
	}
	return withHostOf(u, asked)
}
