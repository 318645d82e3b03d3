// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// identities are what servers have said that they are, by their IDs.
type identities map[string]identity

type identity struct {
	at         time.Time
	properties map[string]string
}

// A server is asked again after identifyAgain, since it may have been replaced, and after retryAfter if it has not answered: sessions cost it something.
const (
	identifyAgain = time.Hour
	retryAfter    = time.Minute
)

// identityNames are the properties that each identified server has, empty where it doesn't say them.
var identityNames = []string{
	"OPCUA_APPLICATION_NAME", "OPCUA_APPLICATION_URI", "OPCUA_PRODUCT_URI", "OPCUA_SECURITY", "OPCUA_FINGERPRINT", "OPCUA_MANUFACTURER", "OPCUA_PRODUCT", "OPCUA_VERSION", "OPCUA_BUILD",
}

// add gives devices the properties of their servers, eight of which are asked at a time.
func (known identities) add(ctx context.Context, devices []handler.Device, timeout time.Duration, dropped *network.DropCounter) []handler.Device {
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(8)
	for _, d := range devices {
		mu.Lock()
		i, ok := known[d.ID]
		mu.Unlock()
		if ok && time.Since(i.at) < identifyAgain {
			continue
		}
		g.Go(func() error {
			asking, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			p, err := identify(asking, d.Properties["OPCUA_DISCOVERY_URL"])
			if err != nil && ctx.Err() == nil {
				dropped.Add(d.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			now := identity{time.Now(), p}
			if err != nil {
				now.at = now.at.Add(retryAfter - identifyAgain)
				if before, ok := known[d.ID]; ok {
					now.properties = before.properties
				}
			}
			known[d.ID] = now
			return nil
		})
	}
	_ = g.Wait()
	for id := range known {
		if !slices.ContainsFunc(devices, func(d handler.Device) bool { return d.ID == id }) {
			delete(known, id)
		}
	}
	for _, d := range devices {
		for name, value := range known[d.ID].properties {
			d.Properties[name] = network.CleanText(value, maxText)
		}
		for _, name := range identityNames { // a device template may have any of them
			d.Properties[name] += ""
		}
	}
	return devices
}

// identify asks a server for its security and, if it lets anybody in without, for its product.
func identify(ctx context.Context, url string) (map[string]string, error) {
	endpoints, err := wire.Endpoints(ctx, url)
	if err != nil {
		return nil, err
	}
	p := map[string]string{}
	anybody := false
	best, rank := wire.Endpoint{}, -1
	for _, e := range endpoints {
		if r := int(e.Mode)*10 + slices.Index(wire.Policies, e.Policy); r > rank && slices.Contains(wire.Policies, e.Policy) {
			best, rank = e, r
		}
		anybody = anybody || e.Policy == wire.PolicyNone && e.Mode == wire.ModeNone && e.Anonymous()
	}
	if rank >= 0 {
		p["OPCUA_SECURITY"] = string(best.Policy) + " " + best.Mode.String()
	}
	if len(best.Cert) > 0 {
		p["OPCUA_FINGERPRINT"] = wire.Fingerprint(best.Cert)
	}
	if !anybody {
		return p, nil
	}
	s, err := wire.Dial(ctx, wire.Options{URL: url, Policy: wire.PolicyNone, Mode: wire.ModeNone, Name: "edgebus discovery", SessionTimeout: 10 * time.Second})
	if err != nil {
		return p, err
	}
	defer func() { _ = s.Close() }()
	b, err := s.BuildInfo(ctx)
	p["OPCUA_MANUFACTURER"], p["OPCUA_PRODUCT"], p["OPCUA_VERSION"], p["OPCUA_BUILD"] = b.Manufacturer, b.Product, b.Version, b.Build
	return p, err
}
