package wire

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds of what a handler may say.
const (
	MaxResponse   = 16 << 20 // bytes of a list
	MaxDevice     = 64 << 10 // bytes of a device
	MaxID         = 1024     // bytes
	MaxName       = 253      // bytes of a property's name, and of a handler's
	MaxProperties = 256      // of a device
	MaxPaths      = 64       // mounts, and device specs, of a device
	MaxPath       = 4096     // bytes
)

// Device is a thing that was found.
type Device struct {
	// ID tells the device from all others of the Configuration, the same one each time, and on each node that sees it. 1 to
	// 1,024 bytes of UTF-8.
	ID string
	// Properties say what it is and where: what a user of the device gets as environment variables, and templates read.
	Properties map[string]string
	// Mounts are the files and directories of the host that a user of the device needs.
	Mounts []Mount
	// DeviceSpecs are the device files of the host that a user of the device needs.
	DeviceSpecs []DeviceSpec
}

// Mount is a file or directory of the host.
type Mount struct {
	ContainerPath, HostPath string
	ReadOnly                bool
}

// DeviceSpec is a device file of the host. Permissions are of the letters r, w and m.
type DeviceSpec struct {
	ContainerPath, HostPath string
	Permissions             string
}

// Check says what is wrong with a device: the field and the rule.
func (d Device) Check() error {
	switch {
	case d.ID == "":
		return errors.New("a device has no id")
	case len(d.ID) > MaxID || !printable(d.ID):
		return fmt.Errorf("the id %s: must be at most %d bytes of printable UTF-8", clip(d.ID), MaxID)
	case len(d.Properties) > MaxProperties:
		return fmt.Errorf("device %s has %d properties: at most %d", clip(d.ID), len(d.Properties), MaxProperties)
	case len(d.Mounts) > MaxPaths || len(d.DeviceSpecs) > MaxPaths:
		return fmt.Errorf("device %s has %d mounts and %d device specs: at most %d each", clip(d.ID), len(d.Mounts), len(d.DeviceSpecs), MaxPaths)
	}
	for name, value := range d.Properties {
		switch {
		case name == "" || len(name) > MaxName || !printable(name) || strings.Contains(name, "="):
			return fmt.Errorf("device %s: the property's name %s: must be 1 to %d bytes of printable UTF-8 without =", clip(d.ID), clip(name), MaxName)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
			return fmt.Errorf("device %s: the property %s: must be UTF-8 without NUL", clip(d.ID), clip(name))
		}
	}
	for _, m := range d.Mounts {
		if err := checkPaths(d.ID, "mount", m.ContainerPath, m.HostPath); err != nil {
			return err
		}
	}
	for _, s := range d.DeviceSpecs {
		if err := checkPaths(d.ID, "device spec", s.ContainerPath, s.HostPath); err != nil {
			return err
		}
		if len(s.Permissions) > 3 || strings.Trim(s.Permissions, "rwm") != "" {
			return fmt.Errorf("device %s: a device spec's permissions %s: must be of the letters r, w and m", clip(d.ID), clip(s.Permissions))
		}
	}
	return nil
}

func checkPaths(id, what string, paths ...string) error {
	for _, p := range paths {
		if !path.IsAbs(p) || path.Clean(p) != p || len(p) > MaxPath || !printable(p) {
			return fmt.Errorf("device %s: a %s's path %s: must be absolute, without .., //, or a / at its end, and at most %d bytes of printable UTF-8", clip(id), what, clip(p), MaxPath)
		}
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return unicode.IsControl(r) }) < 0
}

// clip quotes what may be long or unprintable.
func clip(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q…", s[:80])
	}
	return fmt.Sprintf("%q", s)
}

// CheckName says what is wrong with the name of a handler.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName || !printable(name) {
		return fmt.Errorf("the handler's name %s: must be 1 to %d bytes of printable UTF-8", clip(name), MaxName)
	}
	return nil
}

// fields calls visit with each field of a message: number is that of a varint, text the content of all that has a length. A
// field of another type is skipped.
func fields(message []byte, visit func(field protowire.Number, number uint64, text []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var number uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
			field = 0
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if field != 0 {
			if err := visit(field, number, text); err != nil {
				return err
			}
		}
	}
	return nil
}

func text(b []byte, field protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func flag(b []byte, field protowire.Number, value bool) []byte {
	if !value {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), 1)
}

func message(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

// entry reads an entry of a map.
func entry(b []byte) (key string, value []byte, err error) {
	err = fields(b, func(f protowire.Number, _ uint64, t []byte) error {
		switch f {
		case 1:
			key = string(t)
		case 2:
			value = t
		}
		return nil
	})
	return key, value, err
}

// Devices is a list as it is sent.
type Devices []Device

func (d Devices) appendTo(b []byte) []byte {
	for _, device := range d {
		b = message(b, 1, device.appendTo(nil))
	}
	return b
}

func (d Device) appendTo(b []byte) []byte {
	b = text(b, 1, d.ID)
	for _, k := range slices.Sorted(maps.Keys(d.Properties)) {
		b = message(b, 2, text(text(nil, 1, k), 2, d.Properties[k]))
	}
	for _, m := range d.Mounts {
		b = message(b, 3, flag(text(text(nil, 1, m.ContainerPath), 2, m.HostPath), 3, m.ReadOnly))
	}
	for _, s := range d.DeviceSpecs {
		b = message(b, 4, text(text(text(nil, 1, s.ContainerPath), 2, s.HostPath), 3, s.Permissions))
	}
	return b
}

// Problems are what is wrong with devices of a list, of which the first few are kept.
type Problems struct {
	Count int
	First []error
}

// Add counts a problem.
func (p *Problems) Add(err error) {
	if p.Count++; len(p.First) < 3 {
		p.First = append(p.First, err)
	}
}

// String names the first problems.
func (p Problems) String() string {
	text := errors.Join(p.First...).Error()
	if more := p.Count - len(p.First); more > 0 {
		text += fmt.Sprintf("\nand %d problems more", more)
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// ParseDevices reads a list. A device that breaks a rule is left out and named in problems, as all are that have the id of one
// before them, and all beyond the first limit; the others are there. An error says that it is no list at all.
func ParseDevices(b []byte, limit int) (devices Devices, problems Problems, err error) {
	seen := map[string]bool{}
	beyond := 0
	err = fields(b, func(f protowire.Number, _ uint64, t []byte) error {
		if f != 1 {
			return nil
		}
		if len(devices) >= limit {
			beyond++
			return nil
		}
		d, wrong := parseDevice(t)
		switch {
		case wrong != nil:
			problems.Add(wrong)
		case seen[d.ID]:
			problems.Add(fmt.Errorf("two devices have the id %s: the first one counts", clip(d.ID)))
		default:
			seen[d.ID] = true
			devices = append(devices, d)
		}
		return nil
	})
	if beyond > 0 {
		problems.Count += beyond
		problems.First = append([]error{fmt.Errorf("there are more than %d devices: the first ones count, and %d are left out", limit, beyond)}, problems.First...)
	}
	return devices, problems, err
}

func parseDevice(b []byte) (d Device, err error) {
	if len(b) > MaxDevice {
		return d, fmt.Errorf("a device of %d bytes: at most %d", len(b), MaxDevice)
	}
	err = fields(b, func(f protowire.Number, _ uint64, t []byte) error {
		switch f {
		case 1:
			d.ID = string(t)
		case 2:
			key, value, err := entry(t)
			if err != nil {
				return err
			}
			if d.Properties == nil {
				d.Properties = map[string]string{}
			}
			d.Properties[key] = string(value)
		case 3:
			m, err := parseMount(t)
			d.Mounts = append(d.Mounts, m)
			return err
		case 4:
			s, err := parseDeviceSpec(t)
			d.DeviceSpecs = append(d.DeviceSpecs, s)
			return err
		}
		return nil
	})
	if err != nil {
		return d, fmt.Errorf("a device can't be read: %w", err)
	}
	return d, d.Check()
}

func parseMount(b []byte) (m Mount, err error) {
	err = fields(b, func(f protowire.Number, n uint64, t []byte) error {
		switch f {
		case 1:
			m.ContainerPath = string(t)
		case 2:
			m.HostPath = string(t)
		case 3:
			m.ReadOnly = n != 0
		}
		return nil
	})
	return m, err
}

func parseDeviceSpec(b []byte) (s DeviceSpec, err error) {
	err = fields(b, func(f protowire.Number, _ uint64, t []byte) error {
		switch f {
		case 1:
			s.ContainerPath = string(t)
		case 2:
			s.HostPath = string(t)
		case 3:
			s.Permissions = string(t)
		}
		return nil
	})
	return s, err
}

// Request is what a handler is asked.
type Request struct {
	// Details is one text, of contract V0. The proposal's has DetailsMap.
	Details    string
	DetailsMap map[string]string
	Properties map[string][]byte
}

func (r Request) appendTo(b []byte, c Contract) []byte {
	if c == Proposal {
		for _, k := range slices.Sorted(maps.Keys(r.DetailsMap)) {
			b = message(b, 1, text(text(nil, 1, k), 2, r.DetailsMap[k]))
		}
		return b
	}
	b = text(b, 1, r.Details)
	for _, k := range slices.Sorted(maps.Keys(r.Properties)) {
		value := []byte(nil)
		if v := r.Properties[k]; v != nil {
			value = message(nil, 1, v)
		}
		b = message(b, 2, message(text(nil, 1, k), 2, value))
	}
	return b
}

func parseRequest(b []byte, c Contract) (r Request, err error) {
	err = fields(b, func(f protowire.Number, _ uint64, t []byte) error {
		switch {
		case c == Proposal && f == 1:
			key, value, err := entry(t)
			if r.DetailsMap == nil {
				r.DetailsMap = map[string]string{}
			}
			r.DetailsMap[key] = string(value)
			return err
		case c == V0 && f == 1:
			r.Details = string(t)
		case c == V0 && f == 2:
			key, value, err := entry(t)
			if err != nil {
				return err
			}
			if r.Properties == nil {
				r.Properties = map[string][]byte{}
			}
			r.Properties[key] = nil
			return fields(value, func(f protowire.Number, _ uint64, t []byte) error {
				if f == 1 {
					r.Properties[key] = append([]byte{}, t...)
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

// Registration is what a handler says of itself.
type Registration struct {
	Contract Contract
	Name     string
	Endpoint string
	Network  bool
	Shared   bool
}

func (r Registration) appendTo(b []byte) []byte {
	b = text(text(b, 1, r.Name), 2, r.Endpoint)
	if r.Contract == Proposal {
		return flag(b, 3, !r.Shared)
	}
	return flag(flag(b, 3, r.Network), 4, r.Shared)
}

func parseRegistration(b []byte, c Contract) (Registration, error) {
	r := Registration{Contract: c, Shared: c == Proposal}
	err := fields(b, func(f protowire.Number, n uint64, t []byte) error {
		switch {
		case f == 1:
			r.Name = string(t)
		case f == 2:
			r.Endpoint = string(t)
		case c == Proposal && f == 3:
			r.Shared = n == 0
		case f == 3:
			r.Network = n == 1
		case c == V0 && f == 4:
			r.Shared = n != 0
		}
		return nil
	})
	if c == Proposal {
		r.Network = !strings.ContainsRune(r.Endpoint, '/') && strings.ContainsRune(r.Endpoint, ':') || strings.HasPrefix(r.Endpoint, "http")
	}
	return r, err
}
