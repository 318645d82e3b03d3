// SPDX-License-Identifier: Apache-2.0

// Package drivertest is the one suite that every driver passes. A driver's test describes a device of its protocol in
// a Rig and calls Run. The suite talks to the driver with the checks that the SDK puts before it (mappers.Open), without a broker.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/mappers"
)

// Rig is a device for the suite, real or simulated, fresh for each test.
type Rig struct {
	Driver mappers.Driver
	// Device has at least one property that can be read and, unless the protocol can't write, one that can be written.
	Device mappers.Device
	// Another is a second device of the same driver, which may share its connection. Optional.
	Another *mappers.Device
	// Broken are variations of Device that can't work. Each must be refused with a *ConfigError whose field is the key.
	Broken map[string]mappers.Device
	// Stop makes the device unreachable and Start brings it back where it was. Optional, both or none.
	Stop, Start func()
	// Patience is how long the driver may take to notice that a device is gone; default 30 s.
	Patience time.Duration
}

// Run runs the suite. newRig is called for every test of it.
func Run(t *testing.T, newRig func(t *testing.T) Rig) {
	for name, test := range map[string]func(*testing.T, Rig){
		"names":             testNames,
		"open and close":    testClose,
		"read":              testRead,
		"write":             testWrite,
		"refuse":            testRefuse,
		"unknown property":  testUnknown,
		"broken config":     testBroken,
		"cancelled":         testCancelled,
		"concurrent":        testConcurrent,
		"device comes back": testComesBack,
	} {
		t.Run(name, func(t *testing.T) {
			rig := newRig(t)
			if rig.Patience == 0 {
				rig.Patience = 30 * time.Second
			}
			test(t, rig)
		})
	}
}

func openDevice(t *testing.T, rig Rig, d mappers.Device) *mappers.Opened {
	t.Helper()
	s, err := mappers.Open(t.Context(), rig.Driver, d)
	noError(t, err, "Open")
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// readProperty reads one property by whichever way the session has.
func readProperty(ctx context.Context, s *mappers.Opened, property string) (string, error) {
	got, err := s.Read(ctx, []string{property})
	if err != nil {
		return "", err
	}
	r, ok := got[property]
	if !ok {
		return "", mappers.Refuse(mappers.NotReachable, "%s was not read", property)
	}
	return r.Value, r.Err
}

func testNames(t *testing.T, rig Rig) {
	requireTrue(t, len(rig.Driver.Protocols()) > 0, "the driver names no protocol")
	requireTrue(t, !slices.Contains(rig.Driver.Protocols(), ""), "a protocol has no name")
}

func testClose(t *testing.T, rig Rig) {
	for range 3 {
		s := openDevice(t, rig, rig.Device)
		noError(t, s.Close(), "Close")
		noError(t, s.Close(), "a second Close")
		_, err := readProperty(t.Context(), s, rig.Device.Properties[0].Name)
		requireTrue(t, err != nil, "a closed session reads")
	}
}

func testRead(t *testing.T, rig Rig) {
	s := openDevice(t, rig, rig.Device)
	for _, p := range rig.Device.Properties {
		v, err := readProperty(t.Context(), s, p.Name)
		noError(t, err, p.Name)
		noError(t, CheckType(p.Type, v), p.Name)
	}
	names := []string{}
	for _, p := range rig.Device.Properties {
		names = append(names, p.Name)
	}
	grouped := map[string]int{}
	for _, group := range s.Groups(names) {
		got, err := s.Read(t.Context(), group)
		noError(t, err, "a group of properties")
		for _, name := range group {
			grouped[name]++
			p, _ := rig.Device.Property(name)
			r, ok := got[name]
			requireTrue(t, ok, "%s was not read with its group", name)
			noError(t, r.Err, name)
			noError(t, CheckType(p.Type, r.Value), name)
		}
	}
	for _, name := range names {
		requireTrue(t, grouped[name] == 1, "%s is in %d groups", name, grouped[name])
	}
}

// CheckType reports whether value is text of the type.
func CheckType(typ mappers.Type, value string) error {
	if value == "" && !typ.Numeric() && typ != mappers.Boolean {
		return nil // nothing was reported yet
	}
	if r := (mappers.Property{Type: typ}).Check(value); r != nil {
		return r
	}
	return nil
}

// validValues are some that the property may have.
func validValues(p mappers.Property) []string {
	switch {
	case len(p.Enum) > 0:
		return p.Enum
	case p.Type == mappers.Boolean:
		return []string{"true", "false", "true"}
	case p.Type.Numeric() && p.Minimum != nil && p.Maximum != nil:
		middle := float64(int((*p.Minimum + *p.Maximum) / 2))
		return []string{formatNumber(*p.Minimum), formatNumber(*p.Maximum), formatNumber(middle)}
	case p.Type.Numeric():
		return []string{"1", "0", "7"}
	}
	return []string{"one", "two"}
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func writableProperties(d mappers.Device) (list []mappers.Property) {
	for _, p := range d.Properties {
		if p.Writable {
			list = append(list, p)
		}
	}
	return list
}

func testWrite(t *testing.T, rig Rig) {
	s := openDevice(t, rig, rig.Device)
	if !s.CanWrite() {
		t.Skip("the driver can't write")
	}
	for _, p := range writableProperties(rig.Device) {
		for _, v := range validValues(p) {
			noError(t, s.Write(t.Context(), p.Name, v), p.Name+" = "+v)
			got, err := readProperty(t.Context(), s, p.Name)
			noError(t, err, "read")
			requireTrue(t, v == got, "%s was written as %q and is read back as %q", p.Name, v, got)
		}
	}
}

// refusedValues are values that must be refused: with a *Refusal, and without the device changing.
func refusedValues(p mappers.Property) (list []string) {
	if p.Type.Numeric() {
		list = append(list, "", "warm", "NaN", "1e999")
		if p.Maximum != nil {
			list = append(list, formatNumber(*p.Maximum+1))
		}
		if p.Minimum != nil {
			list = append(list, formatNumber(*p.Minimum-1))
		}
	}
	if p.Type == mappers.Boolean {
		list = append(list, "maybe", "")
	}
	if len(p.Enum) > 0 {
		list = append(list, "neither-of-them")
	}
	return list
}

func testRefuse(t *testing.T, rig Rig) {
	s := openDevice(t, rig, rig.Device)
	if !s.CanWrite() {
		t.Skip("the driver can't write")
	}
	for _, p := range rig.Device.Properties {
		before, err := readProperty(t.Context(), s, p.Name)
		noError(t, err, "read")
		bad := refusedValues(p)
		if !p.Writable {
			bad = append(validValues(p), bad...)
		}
		for _, v := range bad {
			r := errorOf[*mappers.Refusal](t, s.Write(t.Context(), p.Name, v), fmt.Sprintf("%s = %q", p.Name, v))
			requireTrue(t, r.Code != "" && r.Message != "", "the refusal of %s = %q has no code or no message", p.Name, v)
		}
		if p.Writable {
			after, err := readProperty(t.Context(), s, p.Name)
			noError(t, err, "read")
			requireTrue(t, before == after, "%s has changed from %q to %q by refused writes", p.Name, before, after)
		}
	}
}

func testUnknown(t *testing.T, rig Rig) {
	s := openDevice(t, rig, rig.Device)
	_, err := readProperty(t.Context(), s, "no-such-property")
	_ = errorOf[*mappers.Refusal](t, err, "a property that is not there is read")
	if s.CanWrite() {
		_ = errorOf[*mappers.Refusal](t, s.Write(t.Context(), "no-such-property", "1"), "a property that is not there is written")
	}
}

func testBroken(t *testing.T, rig Rig) {
	for field, d := range rig.Broken {
		s, err := mappers.Open(t.Context(), rig.Driver, d)
		if err == nil {
			_ = s.Close()
		}
		bad := errorOf[*mappers.ConfigError](t, err, field)
		requireTrue(t, bad.Field == field, "the error of %s names %s", field, bad.Field)
		requireTrue(t, bad.Message != "", "the error of %s has no message", field)
	}
}

func testCancelled(t *testing.T, rig Rig) {
	s := openDevice(t, rig, rig.Device)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = readProperty(ctx, s, rig.Device.Properties[0].Name)
		if s.CanWrite() {
			_ = s.Write(ctx, rig.Device.Properties[0].Name, "1")
		}
		if s, err := mappers.Open(ctx, rig.Driver, rig.Device); err == nil {
			_ = s.Close()
		}
	}()
	select {
	case <-done:
	case <-time.After(rig.Patience):
		t.Fatal("calls with a cancelled context did not return")
	}
	_, err := readProperty(t.Context(), s, rig.Device.Properties[0].Name)
	noError(t, err, "a cancelled call must not spoil the session")
}

func testConcurrent(t *testing.T, rig Rig) {
	devices := []mappers.Device{rig.Device}
	if rig.Another != nil {
		devices = append(devices, *rig.Another)
	}
	var g errgroup.Group
	for i := range 8 {
		d := devices[i%len(devices)]
		g.Go(func() error {
			for range 5 {
				if err := useOnce(t.Context(), rig.Driver, d); err != nil {
					return err
				}
			}
			return nil
		})
	}
	noError(t, g.Wait(), "several sessions at a time")
}

func useOnce(ctx context.Context, driver mappers.Driver, d mappers.Device) error {
	s, err := mappers.Open(ctx, driver, d)
	if err != nil {
		return err
	}
	for _, p := range d.Properties {
		v, err := readProperty(ctx, s, p.Name)
		if err != nil {
			return errors.Join(err, s.Close())
		}
		if s.CanWrite() && p.Writable && slices.Contains(validValues(p), v) {
			if err := s.Write(ctx, p.Name, v); err != nil {
				return errors.Join(err, s.Close())
			}
		}
	}
	return s.Close()
}

func testComesBack(t *testing.T, rig Rig) {
	if rig.Stop == nil {
		t.Skip("the device can't be switched off")
	}
	property := rig.Device.Properties[0].Name
	s := openDevice(t, rig, rig.Device)
	_, err := readProperty(t.Context(), s, property)
	noError(t, err, "read")
	rig.Stop()
	awaitCondition(t, rig.Patience, "reading from a dead device must fail, and not be refused", func() bool {
		_, err := readProperty(t.Context(), s, property)
		var r *mappers.Refusal
		return err != nil && !errors.As(err, &r)
	})
	noError(t, s.Close(), "Close")
	rig.Start()
	awaitCondition(t, rig.Patience, "the device is back, and can't be read", func() bool {
		s, err := mappers.Open(t.Context(), rig.Driver, rig.Device)
		if err != nil {
			return false
		}
		defer func() { _ = s.Close() }()
		_, err = readProperty(t.Context(), s, property)
		return err == nil
	})
}

// The suite is part of whatever driver uses it, so it needs no library for tests.

func requireTrue(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

func noError(t *testing.T, err error, what string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// errorOf is the error of type E in err, which must be there.
func errorOf[E error](t *testing.T, err error, what string) (as E) {
	t.Helper()
	if !errors.As(err, &as) {
		t.Fatalf("%s: the error is %v, not a %T", what, err, as)
	}
	return as
}

// awaitCondition awaits a condition, which it looks at every 10 ms.
func awaitCondition(t *testing.T, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	ticks := time.NewTicker(10 * time.Millisecond)
	defer ticks.Stop()
	for limit := time.After(patience); !ok(); {
		select {
		case <-ticks.C:
		case <-limit:
			t.Fatal(what)
		}
	}
}

// SettingsDriver is a driver that says which settings it takes.
type SettingsDriver interface {
	mappers.Driver
	mappers.Describer
}

// RunSettings holds a driver against its table of settings: each of them is taken, so that a wrong value is told as one, and any other is
// refused. device is the configuration that a Device needs, visitor values for what visitors need.
func RunSettings(t *testing.T, driver SettingsDriver, device, visitor map[string]string) {
	t.Helper()
	table := driver.Settings()
	for _, place := range []string{"device", "property", "event", "command"} {
		open := func(name string) error {
			d := mappers.Device{Config: maps.Clone(device)}
			p := mappers.Property{Name: "x", Visited: true, Config: map[string]string{}}
			for _, s := range table.SettingsFor(place) {
				if value, needed := visitor[s.Name]; needed && place != "device" {
					p.Config[s.Name] = value
				}
			}
			switch place {
			case "device":
				d.Config[name] = "?"
			case "property":
				p.Type = mappers.Int
				d.Properties = []mappers.Property{p}
			case "event":
				d.Events = []mappers.Property{p}
			case "command":
				d.Commands = []mappers.Property{p}
			}
			p.Config[name] = "?" // the device has the same map
			_, err := driver.Open(t.Context(), d)
			return err
		}
		for _, s := range table.SettingsFor(place) {
			err := open(s.Name)
			requireTrue(t, !saysUnknown(err), "%s: %s is in the table: %v", place, s.Name, err)
		}
		if len(table.SettingsFor(place)) > 0 {
			err := open("colour")
			requireTrue(t, saysUnknown(err), "%s: what is not in the table is taken: %v", place, err)
		}
	}
}

// RunSettingsPage holds the page about a protocol's settings against its table: each of them is there, with its default where the page has a
// row for it, and a table whose first column is of settings has no others.
func RunSettingsPage(t *testing.T, table mappers.ProtocolSettings, page string) {
	t.Helper()
	text, err := os.ReadFile(page)
	noError(t, err, page)
	known := map[string]bool{}
	for _, place := range []string{"device", "property", "event", "command"} {
		for _, s := range table.SettingsFor(place) {
			for _, name := range append([]string{s.Name}, s.Aliases...) {
				known[name] = true
				requireTrue(t, strings.Contains(string(text), "`"+name+"`"), "%s doesn't name the setting %s", page, name)
			}
			rows := settingRow(s.Name).FindAllString(string(text), -1)
			told := slices.ContainsFunc(rows, func(row string) bool { return strings.Contains(row, s.Default) })
			requireTrue(t, len(rows) == 0 || told, "%s doesn't say that the default of %s is %s", page, s.Name, s.Default)
		}
	}
	for _, rows := range settingTable.FindAllStringSubmatch(string(text), -1) {
		for _, row := range strings.Split(strings.TrimSpace(rows[1]), "\n") {
			for _, name := range quotedName.FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
				requireTrue(t, known[name[1]], "%s has a setting %s that the driver hasn't", page, name[1])
			}
		}
	}
}

var (
	settingTable = regexp.MustCompile(`(?m)^\| setting[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)`)
	quotedName   = regexp.MustCompile("`([^`]+)`")
)

// settingRow finds the rows of a setting.
func settingRow(name string) *regexp.Regexp {
	return regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(name) + "`[^|]*\\|.*$")
}

// saysUnknown reports whether a driver says of a setting that it has none of that name.
func saysUnknown(err error) bool {
	var c *mappers.ConfigError
	return errors.As(err, &c) && strings.HasPrefix(c.Message, "is no setting")
}
