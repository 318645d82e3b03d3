// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
)

// Bounds of a handler's messages. The limits of a device are in topics/resource.
const (
	MaxResponse = 16 << 20 // bytes of a list
	MaxDevice   = 64 << 10 // bytes of a device
	MaxName     = 253      // bytes of a handler's name
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

// quoteClipped quotes text that may be long or unprintable.
func quoteClipped(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q…", s[:80])
	}
	return fmt.Sprintf("%q", s)
}

// CheckAddress says what is wrong with an address of a handler.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if n, wrong := strconv.ParseUint(port, 10, 16); err != nil || host == "" || wrong != nil || n == 0 {
		return errors.New("must be host:port, with http:// before it or not")
	}
	return nil
}

// CheckName says what is wrong with the name of a handler.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("the handler's name %s: must be 1 to %d bytes of printable UTF-8", quoteClipped(name), MaxName)
	}
	return nil
}

func appendText(b []byte, field protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendFlag(b []byte, field protowire.Number, value bool) []byte {
	if !value {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), 1)
}

// toldField is the field of a DiscoverResponse that Akri's has not.
const toldField = 1000

// maxTold bounds what a handler tells users.
const maxTold = 1024

func appendTold(b []byte, told string) []byte {
	if told == "" {
		return b
	}
	return appendMessage(b, toldField, []byte(told))
}

// ToldText is what a handler tells users of a list, cut where it is too long.
func ToldText(b []byte) (told string) {
	_ = rawgrpc.EachField(b, func(f protowire.Number, _ uint64, t []byte) error { // EachDevice says what is wrong with it
		if f == toldField {
			told = strings.ToValidUTF8(string(t[:min(len(t), maxTold)]), "")
		}
		return nil
	})
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, told)
}

func appendMessage(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

// parseMapEntry reads an entry of a map.
func parseMapEntry(b []byte) (key string, value []byte, err error) {
	err = rawgrpc.EachField(b, func(f protowire.Number, _ uint64, t []byte) error {
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
		b = appendMessage(b, 1, device.appendTo(nil))
	}
	return b
}

func (d Device) appendTo(b []byte) []byte {
	b = appendText(b, 1, d.ID)
	for _, k := range slices.Sorted(maps.Keys(d.Properties)) {
		b = appendMessage(b, 2, appendText(appendText(nil, 1, k), 2, d.Properties[k]))
	}
	for _, m := range d.Mounts {
		b = appendMessage(b, 3, appendFlag(appendText(appendText(nil, 1, m.ContainerPath), 2, m.HostPath), 3, m.ReadOnly))
	}
	for _, s := range d.DeviceSpecs {
		b = appendMessage(b, 4, appendText(appendText(appendText(nil, 1, s.ContainerPath), 2, s.HostPath), 3, s.Permissions))
	}
	return b
}

// EachDevice calls visit with each device of a list, or with what is wrong with it. An error says that the rest of the list can't be
// read.
func EachDevice(b []byte, visit func(Device, error)) error {
	return rawgrpc.EachField(b, func(f protowire.Number, _ uint64, t []byte) error {
		if f == 1 {
			visit(parseDevice(t))
		}
		return nil
	})
}

func parseDevice(b []byte) (d Device, err error) {
	if len(b) > MaxDevice {
		return d, fmt.Errorf("a device of %d bytes: at most %d", len(b), MaxDevice)
	}
	err = rawgrpc.EachField(b, func(f protowire.Number, _ uint64, t []byte) error {
		switch f {
		case 1:
			d.ID = string(t)
		case 2:
			key, value, err := parseMapEntry(t)
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
	return d, nil
}

func parseMount(b []byte) (m Mount, err error) {
	err = rawgrpc.EachField(b, func(f protowire.Number, n uint64, t []byte) error {
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
	to := []*string{&s.ContainerPath, &s.HostPath, &s.Permissions}
	err = rawgrpc.EachField(b, func(f protowire.Number, _ uint64, t []byte) error {
		if int(f) <= len(to) {
			*to[f-1] = string(t)
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
	if c == ContractProposal {
		for _, k := range slices.Sorted(maps.Keys(r.DetailsMap)) {
			b = appendMessage(b, 1, appendText(appendText(nil, 1, k), 2, r.DetailsMap[k]))
		}
		return b
	}
	b = appendText(b, 1, r.Details)
	for _, k := range slices.Sorted(maps.Keys(r.Properties)) {
		value := []byte(nil)
		if v := r.Properties[k]; v != nil {
			value = appendMessage(nil, 1, v)
		}
		b = appendMessage(b, 2, appendMessage(appendText(nil, 1, k), 2, value))
	}
	return b
}

func parseRequest(b []byte, c Contract) (r Request, err error) {
	err = rawgrpc.EachField(b, func(f protowire.Number, _ uint64, t []byte) error {
		switch {
		case c == ContractProposal && f == 1:
			key, value, err := parseMapEntry(t)
			if r.DetailsMap == nil {
				r.DetailsMap = map[string]string{}
			}
			r.DetailsMap[key] = string(value)
			return err
		case c == ContractV0 && f == 1:
			r.Details = string(t)
		case c == ContractV0 && f == 2:
			key, value, err := parseMapEntry(t)
			if err != nil {
				return err
			}
			if r.Properties == nil {
				r.Properties = map[string][]byte{}
			}
			r.Properties[key] = nil
			return rawgrpc.EachField(value, func(f protowire.Number, _ uint64, t []byte) error {
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
	Contract Contract `json:"contract"`
	Name     string   `json:"name"`
	Endpoint string   `json:"endpoint"`
	Network  bool     `json:"network,omitempty"`
	Shared   bool     `json:"shared,omitempty"`
}

func (r Registration) appendTo(b []byte) []byte {
	b = appendText(appendText(b, 1, r.Name), 2, r.Endpoint)
	if r.Contract == ContractProposal {
		return appendFlag(b, 3, !r.Shared)
	}
	return appendFlag(appendFlag(b, 3, r.Network), 4, r.Shared)
}

func parseRegistration(b []byte, c Contract) (Registration, error) {
	r := Registration{Contract: c, Shared: c == ContractProposal}
	err := rawgrpc.EachField(b, func(f protowire.Number, n uint64, t []byte) error {
		switch {
		case f == 1:
			r.Name = string(t)
		case f == 2:
			r.Endpoint = string(t)
		case c == ContractProposal && f == 3:
			r.Shared = n == 0
		case f == 3:
			r.Network = n == 1
		case c == ContractV0 && f == 4:
			r.Shared = n != 0
		}
		return nil
	})
	if c == ContractProposal {
		r.Network = !strings.ContainsRune(r.Endpoint, '/') && strings.ContainsRune(r.Endpoint, ':') || strings.HasPrefix(r.Endpoint, "http")
	}
	return r, err
}
