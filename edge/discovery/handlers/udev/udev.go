// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// Program is the handler.
var Program = handler.Program{
	Name: "udev", Short: "Finds devices of the host in sysfs, by rules in the grammar of udev",
	New: func(env handler.Env) handler.Handler {
		u := &ruleHandler{
			tree: sysfs{sys: cmp.Or(env.Sys, "/sys"), db: "/run/udev/data"}, dev: cmp.Or(env.Dev, "/dev"), log: env.Log, gather: 200 * time.Millisecond, events: uevents,
		}
		if env.Sys != "" { // beside it, as in a copy of a host
			u.tree.db = filepath.Join(filepath.Dir(env.Sys), "run/udev/data")
		}
		return u
	},
}

// ruleHandler looks for devices.
type ruleHandler struct {
	tree   sysfs
	dev    string
	log    zerolog.Logger
	gather time.Duration // how long an event waits for others
	// events sends whenever devices may have changed, until ctx ends. It closes the channel if it can't go on.
	events func(ctx context.Context) (<-chan struct{}, error)
}

// details are those of Akri's handler, and interval and env.
type details struct {
	// UdevRules say which devices to find: those that match any of them.
	UdevRules []string `yaml:"udevRules"`
	// GroupRecursive has a device and all those below it found as one.
	GroupRecursive bool `yaml:"groupRecursive"`
	// Permissions are those of device files, of the letters rwm.
	Permissions string `yaml:"permissions"`
	// Interval is how often it looks without an event.
	Interval time.Duration `yaml:"interval"`
	// Env are udev's properties that found devices are to have.
	Env []string `yaml:"env"`
}

// Discover implements handler.Handler.
func (u *ruleHandler) Discover(ctx context.Context, text string, _ map[string][]byte, found func([]handler.Device)) error {
	want := details{Permissions: "rwm", Interval: 10 * time.Second}
	if err := handler.Details(text, &want); err != nil {
		return err
	}
	var rules []rule
	for i, r := range want.UdevRules {
		parsed, err := parseRule(r)
		if err != nil {
			return handler.InvalidArgument("udevRules[%d]: %w", i, err)
		}
		rules = append(rules, parsed)
	}
	switch {
	case want.UdevRules == nil:
		return handler.InvalidArgument("udevRules: is required: a list of rules such as 'KERNEL==\"video[0-9]*\"'")
	case want.Interval < time.Second:
		return handler.InvalidArgument("interval: %s: must be 1s or more", want.Interval)
	case len(want.Permissions) > 3 || strings.Trim(want.Permissions, "rwm") != "":
		return handler.InvalidArgument("permissions: %q: must be of the letters r, w and m", want.Permissions)
	}
	log := u.log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Hour})
	var events <-chan struct{} // nil: none are received, which is tried again at each look
	for {
		if events == nil {
			var err error
			if events, err = u.events(ctx); err != nil {
				log.Warn().Err(err).Stringer("interval", want.Interval).Msg("the kernel's events can't be received: devices are looked for now and then")
			}
		}
		if err := u.look(want, rules, found); err != nil {
			return err
		}
		switch open := awaitEvent(ctx, want.Interval, events); {
		case ctx.Err() != nil:
			return nil
		case open:
			awaitEvent(ctx, u.gather, nil)
		default:
			log.Warn().Stringer("interval", want.Interval).Msg("the kernel's events are no longer received: devices are looked for now and then until they are again")
			events = nil
			awaitEvent(ctx, want.Interval, nil)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// awaitEvent waits for an event, at most for a while, and returns false if events is closed.
func awaitEvent(ctx context.Context, most time.Duration, events <-chan struct{}) (open bool) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case _, open := <-events:
		return open
	}
	return true
}

func (u *ruleHandler) look(want details, rules []rule, found func([]handler.Device)) error {
	all, err := u.tree.devices()
	if err != nil {
		return err
	}
	groups := map[string][]*device{} // by the devpath of the topmost
	var matched []*device
	for _, d := range all { // in the order of their devpaths: a parent is before its children
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.match(d) }) {
			continue
		}
		matched = append(matched, d)
		top := d.devpath
		if want.GroupRecursive {
			for _, m := range matched {
				if strings.HasPrefix(d.devpath, m.devpath+"/") {
					top = m.devpath
					break
				}
			}
		}
		groups[top] = append(groups[top], d)
	}
	var devices []handler.Device
	for _, top := range slices.Sorted(maps.Keys(groups)) {
		devices = append(devices, u.found(top, groups[top], want))
	}
	found(devices)
	return nil
}

// found is a group of devices as Akri's handler finds it: the variables of the second one end in _1.
func (u *ruleHandler) found(top string, group []*device, want details) handler.Device {
	f := handler.Device{ID: top, Properties: map[string]string{"UDEV_DEVPATH": top}}
	for i, d := range group {
		suffix := ""
		if i > 0 {
			suffix = "_" + strconv.Itoa(i)
		}
		for _, key := range want.Env {
			if value, ok := d.property(key); ok {
				f.Properties[key+suffix] = value
			}
		}
		if name, ok := d.property("DEVNAME"); ok && filepath.IsLocal(strings.TrimPrefix(name, "/dev/")) {
			node := filepath.Join(u.dev, strings.TrimPrefix(name, "/dev/"))
			f.Properties["UDEV_DEVNODE"+suffix] = node
			f.DeviceSpecs = append(f.DeviceSpecs, handler.DeviceSpec{ContainerPath: node, HostPath: node, Permissions: want.Permissions})
		}
	}
	return f
}
