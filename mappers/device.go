package mappers

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// device is what the mapper knows of one of its devices. mapper.mu guards all but the last group.
type device struct {
	key    string // node/name
	bus    string
	uid    string // of the Device: another one may have its name
	info   Device
	gen    int // counts the configurations
	props  map[string]*property
	order  []string // names of props, as in the model
	ready  bool     // the core has told what was reported before
	setups int      // how often the core was asked
	gone   bool     // the worker closes and forgets it

	commands []command
	methods  []resource.DeviceCommand // that the SDK executes by itself
	pushed   map[string]string

	// used by the device's worker only
	session  *Opened
	openGen  int
	stopPush func()
	lost     chan error // from Push
	doubt    bool       // another device of its bus has failed since it last answered: it is pinged first
	online   bool
	failures int
	why      error // the last failure
	retryAt  time.Time
	hopeless bool   // a ConfigError: not before the configuration changes
	problem  string // what was said of it last; empty: nothing
}

// property is one property of a device: what is wanted, what was applied, what is.
type property struct {
	spec resource.Property
	info Property

	wish    wish
	handled uint64 // the newest version that needs nothing more: applied, refused, cleared
	// unsure is set while an earlier write of the wish may or may not have reached the device.
	unsure  bool
	retryAt time.Time // the device could not take it: not before this
	retries int
	// check is set when the device was opened (again), until it was compared with what was reported before.
	check    bool
	compared int    // the configuration under which it was last compared or driven
	told     bool   // reported is known: from the core, or because we have reported
	before   string // what was reported before it was opened

	// nearest is what the device has once a value was written to it; nil: that value.
	nearest func(value string) (string, error)

	applied  uint64 // the newest version applied: the user property "for"
	current  string // what the device has, as far as we know
	known    bool
	reported string // what was last reported
	said     bool   // and that under this configuration: it needn't be said again
	saidFor  uint64

	problem string    // why it can't be read, as it was said; empty: it can
	readAt  time.Time // when it was last read; zero: not known

	collectAt time.Time
	reportAt  time.Time
}

// wish is a wanted value: what the core says is in force.
type wish struct {
	value string
	ver   uint64 // 0: nothing was ever wanted
	until time.Time
	none  bool // cleared: nothing is wanted
	old   bool // it was there before the mapper was
}

func speaks(d Driver, protocol string) bool {
	return slices.ContainsFunc(d.Protocols(), func(p string) bool { return resource.SameProtocol(p, protocol) })
}

// convert makes the driver's view of a device from the bundle.
func convert(d Driver, node string, b resource.Bundle, collect time.Duration) Device {
	dev := Device{
		Node: node, Name: b.Device.Metadata.Name,
		Bus: b.Device.Spec.Protocol.Name, Config: b.Device.Spec.Protocol.Config,
	}
	visitors := map[string]resource.Visitor{}
	for _, pv := range b.Model.Spec.PropertyVisitors {
		if speaks(d, pv.Protocol) {
			for _, v := range pv.Visitors {
				visitors[v.PropertyName] = v
			}
		}
	}
	for _, p := range b.Model.Spec.Properties {
		v, visited := visitors[p.Name]
		dev.Properties = append(dev.Properties, convertProperty(p, v, visited, collect))
	}
	return dev
}

func convertProperty(p resource.Property, v resource.Visitor, visited bool, collect time.Duration) Property {
	out := Property{
		Name: p.Name, Type: Type(p.Type), Writable: p.Writable(), Unit: p.Unit, Minimum: p.Minimum, Maximum: p.Maximum,
		Config: v.Config, Visited: visited, Collect: collect,
		Report: time.Duration(v.ReportCycle) * time.Millisecond, Deadband: v.Deadband,
	}
	if out.Type == "" {
		out.Type = String
	}
	if v.CollectCycle > 0 {
		out.Collect = max(minCycle, time.Duration(v.CollectCycle)*time.Millisecond)
	}
	for _, e := range p.Enum {
		out.Enum = append(out.Enum, string(e))
	}
	return out
}

// configure takes a (new) configuration. What was applied of a property that goes on to exist is kept, but the device
// is compared with it once it is open again; what was refused is tried again.
func (d *device) configure(info Device, m resource.DeviceModel) {
	old := d.props
	d.info, d.gen = info, d.gen+1
	d.props, d.order = map[string]*property{}, nil
	for _, p := range info.Properties {
		spec, _ := m.Property(p.Name)
		prop := old[p.Name]
		if prop == nil {
			// One that comes later may be on the device already, from a model before; what the core remembers of it is
			// from under that one.
			prop = &property{compared: 1, unsure: d.gen > 1}
		}
		prop.spec, prop.info = spec, p
		prop.handled = prop.applied
		prop.retryAt, prop.retries = time.Time{}, 0
		prop.collectAt = time.Time{}
		prop.said = false // what was refused for the old model's sake may be right by the new one
		d.props[p.Name] = prop
		d.order = append(d.order, p.Name)
	}
}

// want takes a wanted value from the core. Older ones than the one known are late copies, but for what is told at a
// new subscription: that is what holds now, and if its number is lower, the core has begun to count anew.
func (p *property) want(w wish, retained bool) bool {
	switch {
	case w.ver == p.wish.ver, w.ver < p.wish.ver && !retained:
		return false
	case w.ver < p.wish.ver:
		p.applied, p.handled, p.check = 0, 0, false
	}
	p.wish, p.retryAt, p.retries = w, time.Time{}, 0
	return true
}

// rememberProblem takes why the property could not be read before.
func (p *property) rememberProblem(why resource.Problem) {
	if payload, err := json.Marshal(why); err == nil && p.readAt.IsZero() && p.problem == "" {
		p.problem = string(payload)
		p.readAt, _ = resource.ParseTime(why.Since)
	}
}

// remember takes what the core says was reported before, as the answer to a version.
func (p *property) remember(reported resource.TwinValue) {
	if p.told {
		return // this mapper has reported since: it knows better
	}
	p.told = true
	value, applied := reported.Value, reported.For
	if p.readAt.IsZero() {
		p.readAt, _ = resource.ParseTime(reported.TS)
	}
	p.reported, p.said, p.saidFor, p.before = value, true, applied, value
	p.applied = max(p.applied, applied)
	p.handled = max(p.handled, applied)
	p.check = applied > 0
}

// changed says whether value is news against what was reported.
func (p *property) changed(value string) bool {
	switch {
	case !p.said, p.saidFor != p.applied:
		return true
	case p.info.Deadband > 0 && p.info.Type.Numeric():
		return !within(value, p.reported, p.info.Deadband)
	}
	return !p.same(value, p.reported)
}

// meets says whether the device has what is wanted, or what is as near to it as it can have.
func (p *property) meets(actual, wanted string) bool {
	if p.same(actual, wanted) {
		return true
	}
	if p.nearest == nil {
		return false
	}
	near, err := p.nearest(wanted)
	return err == nil && p.same(actual, near)
}

func (p *property) same(a, b string) bool {
	return p.spec.Canonical([]byte(a)) == p.spec.Canonical([]byte(b))
}
