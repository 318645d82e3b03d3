// Package drivertest is the one suite that every driver passes. A driver's test describes a device of its protocol in
// a Rig and calls Run. The suite talks to the driver with the checks that the SDK puts before it (mappers.Open), without a broker.
package drivertest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

func open(t *testing.T, rig Rig, d mappers.Device) *mappers.Opened {
	t.Helper()
	s, err := mappers.Open(t.Context(), rig.Driver, d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// read reads one property by whichever way the session has.
func read(ctx context.Context, s *mappers.Opened, property string) (string, error) {
	got, err := s.Read(ctx, []string{property}, func(ctx context.Context, call func(context.Context) error) error { return call(ctx) })
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
	require.NotEmpty(t, rig.Driver.Protocols())
	require.NotContains(t, rig.Driver.Protocols(), "")
}

func testClose(t *testing.T, rig Rig) {
	for range 3 {
		s := open(t, rig, rig.Device)
		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "a second Close")
		_, err := read(t.Context(), s, rig.Device.Properties[0].Name)
		require.Error(t, err, "a closed session reads")
	}
}

func testRead(t *testing.T, rig Rig) {
	s := open(t, rig, rig.Device)
	for _, p := range rig.Device.Properties {
		v, err := read(t.Context(), s, p.Name)
		require.NoError(t, err, p.Name)
		require.NoError(t, CheckType(p.Type, v), p.Name)
	}
	if b, ok := s.Session.(mappers.BatchReader); ok {
		names := []string{}
		for _, p := range rig.Device.Properties {
			names = append(names, p.Name)
		}
		got, err := b.ReadBatch(t.Context(), names)
		require.NoError(t, err)
		for _, p := range rig.Device.Properties {
			require.Contains(t, got, p.Name)
			require.NoError(t, got[p.Name].Err, p.Name)
			require.NoError(t, CheckType(p.Type, got[p.Name].Value), p.Name)
		}
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

// values are some that the property may have.
func values(p mappers.Property) []string {
	switch {
	case len(p.Enum) > 0:
		return p.Enum
	case p.Type == mappers.Boolean:
		return []string{"true", "false", "true"}
	case p.Type.Numeric() && p.Minimum != nil && p.Maximum != nil:
		middle := float64(int((*p.Minimum + *p.Maximum) / 2))
		return []string{number(*p.Minimum), number(*p.Maximum), number(middle)}
	case p.Type.Numeric():
		return []string{"1", "0", "7"}
	}
	return []string{"one", "two"}
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func writable(d mappers.Device) (list []mappers.Property) {
	for _, p := range d.Properties {
		if p.Writable {
			list = append(list, p)
		}
	}
	return list
}

func testWrite(t *testing.T, rig Rig) {
	s := open(t, rig, rig.Device)
	if !s.CanWrite() {
		t.Skip("the driver can't write")
	}
	for _, p := range writable(rig.Device) {
		for _, v := range values(p) {
			require.NoError(t, s.Write(t.Context(), p.Name, v), "%s = %s", p.Name, v)
			got, err := read(t.Context(), s, p.Name)
			require.NoError(t, err)
			require.Equal(t, v, got, "%s read back", p.Name)
		}
	}
}

// refused are values that must be refused: with a *Refusal, and without the device changing.
func refused(p mappers.Property) (list []string) {
	if p.Type.Numeric() {
		list = append(list, "", "warm", "NaN", "1e999")
		if p.Maximum != nil {
			list = append(list, number(*p.Maximum+1))
		}
		if p.Minimum != nil {
			list = append(list, number(*p.Minimum-1))
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
	s := open(t, rig, rig.Device)
	if !s.CanWrite() {
		t.Skip("the driver can't write")
	}
	for _, p := range rig.Device.Properties {
		before, err := read(t.Context(), s, p.Name)
		require.NoError(t, err)
		bad := refused(p)
		if !p.Writable {
			bad = append(values(p), bad...)
		}
		for _, v := range bad {
			var r *mappers.Refusal
			require.ErrorAs(t, s.Write(t.Context(), p.Name, v), &r, "%s = %q", p.Name, v)
			require.NotEmpty(t, r.Code)
			require.NotEmpty(t, r.Message)
		}
		if p.Writable {
			after, err := read(t.Context(), s, p.Name)
			require.NoError(t, err)
			require.Equal(t, before, after, "%s has changed by refused writes", p.Name)
		}
	}
}

func testUnknown(t *testing.T, rig Rig) {
	s := open(t, rig, rig.Device)
	var r *mappers.Refusal
	_, err := read(t.Context(), s, "no-such-property")
	require.ErrorAs(t, err, &r)
	if s.CanWrite() {
		require.ErrorAs(t, s.Write(t.Context(), "no-such-property", "1"), &r)
	}
}

func testBroken(t *testing.T, rig Rig) {
	for field, d := range rig.Broken {
		var bad *mappers.ConfigError
		s, err := mappers.Open(t.Context(), rig.Driver, d)
		if err == nil {
			_ = s.Close()
		}
		require.ErrorAs(t, err, &bad, field)
		require.Equal(t, field, bad.Field)
		require.NotEmpty(t, bad.Message)
	}
}

func testCancelled(t *testing.T, rig Rig) {
	s := open(t, rig, rig.Device)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = read(ctx, s, rig.Device.Properties[0].Name)
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
		require.Fail(t, "calls with a cancelled context did not return")
	}
	_, err := read(t.Context(), s, rig.Device.Properties[0].Name)
	require.NoError(t, err, "a cancelled call must not spoil the session")
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
	require.NoError(t, g.Wait())
}

func useOnce(ctx context.Context, driver mappers.Driver, d mappers.Device) error {
	s, err := mappers.Open(ctx, driver, d)
	if err != nil {
		return err
	}
	for _, p := range d.Properties {
		v, err := read(ctx, s, p.Name)
		if err != nil {
			return errors.Join(err, s.Close())
		}
		if s.CanWrite() && p.Writable && slices.Contains(values(p), v) {
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
	s := open(t, rig, rig.Device)
	_, err := read(t.Context(), s, property)
	require.NoError(t, err)
	rig.Stop()
	require.Eventually(t, func() bool {
		_, err := read(t.Context(), s, property)
		var r *mappers.Refusal
		return err != nil && !errors.As(err, &r)
	}, rig.Patience, 10*time.Millisecond, "reading from a dead device must fail, and not be refused")
	require.NoError(t, s.Close())
	rig.Start()
	require.Eventually(t, func() bool {
		s, err := mappers.Open(t.Context(), rig.Driver, rig.Device)
		if err != nil {
			return false
		}
		defer func() { _ = s.Close() }()
		_, err = read(t.Context(), s, property)
		return err == nil
	}, rig.Patience, 10*time.Millisecond, "the device is back, and can't be read")
}
