// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
)

// Bounds of what mappers send.
const (
	maxName    = 253      // bytes of a name
	maxValue   = 64 << 10 // bytes of a value
	maxMappers = 100      // that have registered
)

// registration is what a mapper says of itself.
type registration struct {
	Name       string   `json:"name"`
	Version    string   `json:"version,omitempty"`
	APIVersion string   `json:"apiVersion,omitempty"`
	Protocol   string   `json:"protocol"`
	Address    string   `json:"address"` // of its Unix socket
	Contract   contract `json:"contract"`
}

func parseRegistration(c contract, in []byte) (r registration, withData bool, err error) {
	r.Contract = c
	err = rawgrpc.EachField(in, func(f protowire.Number, n uint64, text []byte) error {
		switch f {
		case 1:
			withData = n != 0
		case 2:
			return rawgrpc.EachField(text, func(f protowire.Number, _ uint64, text []byte) error {
				if to := map[protowire.Number]*string{1: &r.Name, 2: &r.Version, 3: &r.APIVersion, 4: &r.Protocol, 5: &r.Address}[f]; to != nil {
					*to = string(text)
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return r, withData, err
	}
	r.Address = strings.TrimPrefix(r.Address, "unix://")
	return r, withData, r.check()
}

// check says what is wrong with a registration.
func (r registration) check() error {
	for name, text := range map[string]string{"name": r.Name, "version": r.Version, "api_version": r.APIVersion, "protocol": r.Protocol, "address": r.Address} {
		switch {
		case len(text) > maxName || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
			return fmt.Errorf("mapper.%s: must be at most %d bytes of printable UTF-8", name, maxName)
		case text == "" && (name == "name" || name == "protocol"):
			return fmt.Errorf("mapper.%s: must be set", name)
		}
	}
	if !filepath.IsAbs(r.Address) {
		return fmt.Errorf("mapper.address: %q must be the absolute path of the Unix socket that the mapper serves", r.Address)
	}
	if r.Contract != contractV1beta1 && r.Contract != contractV1alpha1 {
		return fmt.Errorf("contract: %q is neither %s nor %s", r.Contract, contractV1beta1, contractV1alpha1)
	}
	return nil
}

// report is what a mapper says of a device: values of properties, or its state, or both.
type report struct {
	device, namespace string
	values            map[string]string
	state             string
}

var errNoDevice = errors.New("deviceName: must be set")

// parseStatus reads a ReportDeviceStatusRequest.
func parseStatus(c contract, in []byte) (r report, err error) {
	r.values = map[string]string{}
	err = rawgrpc.EachField(in, func(f protowire.Number, _ uint64, text []byte) error {
		switch f {
		case 1:
			r.device = string(text)
		case 2:
			return rawgrpc.EachField(text, func(f protowire.Number, _ uint64, text []byte) error {
				switch {
				case f == 1:
					return r.takeTwin(text)
				case f == 2 && c == contractV1alpha1:
					r.state = string(text)
				}
				return nil
			})
		case 3:
			r.namespace = string(text)
		}
		return nil
	})
	switch {
	case err != nil:
		return r, err
	case len(r.values) == 0 && r.state == "":
		return r, cmp.Or(r.check(), errors.New("reportedDevice.twins: has no reported value"))
	}
	return r, r.check()
}

// check says what is wrong with the names of a report, which may be kept and published.
func (r report) check() error {
	for field, text := range map[string]string{"deviceName": r.device, "deviceNamespace": r.namespace, "state": r.state} {
		if len(text) > maxName || !utf8.ValidString(text) {
			return fmt.Errorf("%s: must be at most %d bytes of UTF-8", field, maxName)
		}
	}
	if r.device == "" {
		return errNoDevice
	}
	return nil
}

// takeTwin takes the reported value of a twin, if it has one.
func (r *report) takeTwin(in []byte) error {
	var name, value string
	reported := false
	err := rawgrpc.EachField(in, func(f protowire.Number, _ uint64, text []byte) error {
		switch f {
		case 1:
			name = string(text)
		case 3:
			reported = true
			return rawgrpc.EachField(text, func(f protowire.Number, _ uint64, text []byte) error {
				if f == 1 {
					value = string(text)
				}
				return nil
			})
		}
		return nil
	})
	switch {
	case err != nil || !reported:
		return err
	case len(value) > maxValue || !utf8.ValidString(value):
		return fmt.Errorf("reportedDevice.twins[%s].reported.value: must be at most %d bytes of UTF-8", name, maxValue)
	}
	r.values[name] = value
	return nil
}

// parseStates reads a ReportDeviceStatesRequest.
func parseStates(in []byte) (r report, err error) {
	err = rawgrpc.EachField(in, func(f protowire.Number, _ uint64, text []byte) error {
		if to := map[protowire.Number]*string{1: &r.device, 2: &r.namespace, 3: &r.state}[f]; to != nil {
			*to = string(text)
		}
		return nil
	})
	switch {
	case err != nil:
		return r, err
	case r.state == "":
		return r, cmp.Or(r.check(), errors.New("state: must be set"))
	}
	return r, r.check()
}
