// SPDX-License-Identifier: Apache-2.0

// Package network has what the discovery handlers that read from a network have in common: Akri's lists of what is included or
// excluded, the interfaces to ask on, and the count of what was dropped because it could not be read. It never sends anything.
package network

import (
	"cmp"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// MaxDevices bounds what one call of Discover remembers.
const MaxDevices = 10000

// List is a list of what a handler may find, or may not, as Akri's handlers have it. Without a List everything may be.
type List struct {
	Items  []string `yaml:"items"`
	Action string   `yaml:"action"`
}

// Check refuses an action that is unknown.
func (l *List) Check(field string) error {
	if l == nil || l.Action == "" || l.Action == "Include" || l.Action == "Exclude" {
		return nil
	}
	return handler.InvalidArgument("discoveryDetails: %s.action: %q is neither Include nor Exclude", field, l.Action)
}

// Takes reports whether a thing of which match recognizes items may be found.
func (l *List) Takes(match func(item string) bool) bool {
	if l == nil {
		return true
	}
	return slices.ContainsFunc(l.Items, match) != (l.Action == "Exclude")
}

// Filter selects found devices by globs for their properties, all of which must match.
type Filter map[string]string

// Check refuses an invalid glob.
func (f Filter) Check() error {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if _, err := path.Match(f[name], ""); err != nil {
			return handler.InvalidArgument("discoveryDetails: filter.%s: %q is no glob: %v", name, f[name], err)
		}
	}
	return nil
}

// Takes reports whether the properties are those of a device that is looked for.
func (f Filter) Takes(properties map[string]string) bool {
	for name, glob := range f {
		// A slash is nothing special in a value, but for path.Match it ends what * stands for.
		ok, err := path.Match(strings.ReplaceAll(glob, "/", "\x00"), strings.ReplaceAll(properties[name], "/", "\x00"))
		if err != nil || !ok {
			return false
		}
	}
	return true
}

// SortUnique returns devices in the order of their IDs, each ID once, so that an unchanged network makes an unchanged list.
func SortUnique(devices []handler.Device) []handler.Device {
	slices.SortStableFunc(devices, compareIDs)
	return slices.CompactFunc(devices, func(a, b handler.Device) bool { return a.ID == b.ID })
}

// compareIDs compares devices by their IDs.
func compareIDs(a, b handler.Device) int { return cmp.Compare(a.ID, b.ID) }

// SortAll is Sorted for what has IDs of its own making: of several devices with one ID all are returned, in their order, so that
// edgediscovery takes the first and says so.
func SortAll(devices []handler.Device) []handler.Device {
	slices.SortStableFunc(devices, compareIDs)
	return devices
}

// DropCounter counts what could not be read. Its log line comes at most every ten seconds.
type DropCounter struct {
	count atomic.Uint64
	log   zerolog.Logger
}

// NewDropCounter makes a count.
func NewDropCounter(log zerolog.Logger) *DropCounter {
	return &DropCounter{log: log.Sample(&zerolog.BurstSampler{Burst: 1, Period: 10 * time.Second})}
}

// Add counts and logs one more, with its sender.
func (d *DropCounter) Add(from string, err error) {
	d.log.Warn().Err(err).Str("from", from).Uint64("dropped", d.count.Add(1)).Msg("what can't be read is dropped")
}

// Interfaces returns the interfaces for multicast queries: those that are up, have an address, and match one of names if there are
// any.
func Interfaces(names []string) (list []net.Interface, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&(net.FlagMulticast|net.FlagLoopback) == 0 {
			continue
		}
		if len(names) > 0 && !slices.ContainsFunc(names, func(glob string) bool { ok, _ := path.Match(glob, i.Name); return ok }) {
			continue
		}
		if addresses, err := i.Addrs(); err == nil && len(addresses) > 0 {
			list = append(list, i)
		}
	}
	return list, nil
}

// PropertyName converts a text to a part of a property's name: capitals, digits and underscores, as in names of environment variables.
func PropertyName(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, text)
}

// CleanText bounds a text from the network, and replaces what a property must not contain.
func CleanText(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}
