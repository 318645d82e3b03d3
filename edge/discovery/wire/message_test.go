package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

func camera(id string) Device {
	return Device{
		ID: id, Properties: map[string]string{"URL": "rtsp://10.0.0.3/1", "MODEL": "größe 4"},
		Mounts:      []Mount{{ContainerPath: "/c", HostPath: "/h", ReadOnly: true}, {ContainerPath: "/d", HostPath: "/e"}},
		DeviceSpecs: []DeviceSpec{{ContainerPath: "/dev/video0", HostPath: "/dev/video0", Permissions: "rw"}},
	}
}

func TestMessagesAreReadAsTheyWereWritten(t *testing.T) {
	want := Devices{camera("a"), {ID: "b"}, camera("c")}
	got, problems, err := ParseDevices(want.appendTo(nil), 10)
	require.NoError(t, err)
	require.Zero(t, problems.Count)
	require.Equal(t, want, got)

	for _, r := range []Registration{
		{Contract: V0, Name: "onvif", Endpoint: "/run/x/onvif.sock"},
		{Contract: V0, Name: "onvif", Endpoint: "http://10.0.0.3:10000", Network: true, Shared: true},
		{Contract: Proposal, Name: "onvif", Endpoint: "/run/x/onvif.sock", Shared: true},
		{Contract: Proposal, Name: "onvif", Endpoint: "10.0.0.3:10000", Network: true},
	} {
		got, err := parseRegistration(r.appendTo(nil), r.Contract)
		require.NoError(t, err)
		require.Equal(t, r, got)
	}

	v0 := Request{Details: "a: b", Properties: map[string][]byte{"user": []byte("me"), "none": nil, "empty": {}}}
	back, err := parseRequest(v0.appendTo(nil, V0), V0)
	require.NoError(t, err)
	require.Equal(t, v0, back)
	old := Request{DetailsMap: map[string]string{"protocolHandler": "a: b", "other": ""}}
	back, err = parseRequest(old.appendTo(nil, Proposal), Proposal)
	require.NoError(t, err)
	require.Equal(t, old, back)
}

// The bytes are those that a generated encoder writes.
func TestBytesOnTheWire(t *testing.T) {
	require.Equal(t, "\x0a\x05onvif\x12\x03a:1\x18\x01\x20\x01",
		string(Registration{Contract: V0, Name: "onvif", Endpoint: "a:1", Network: true, Shared: true}.appendTo(nil)))
	require.Equal(t, "\x0a\x01x\x12\x08\x0a\x01k\x12\x03\x0a\x01v",
		string(Request{Details: "x", Properties: map[string][]byte{"k": []byte("v")}}.appendTo(nil, V0)))
	require.Equal(t, "\x0a\x1a\x0a\x02id\x12\x06\x0a\x01k\x12\x01v\x1a\x0c\x0a\x02/c\x12\x04/h/i\x18\x01",
		string(Devices{{ID: "id", Properties: map[string]string{"k": "v"}, Mounts: []Mount{{ContainerPath: "/c", HostPath: "/h/i", ReadOnly: true}}}}.appendTo(nil)))
}

func TestABadDeviceIsLeftOutAndNamed(t *testing.T) {
	with := func(change func(*Device)) Device {
		d := camera("bad")
		change(&d)
		return d
	}
	for name, d := range map[string]Device{
		"has no id":            {},
		"at most 1024 bytes":   {ID: strings.Repeat("x", 1025)},
		"printable":            {ID: "a\x00b"},
		"257 properties":       with(func(d *Device) { d.Properties = many(257) }),
		"without =":            with(func(d *Device) { d.Properties = map[string]string{"a=b": ""} }),
		"UTF-8 without NUL":    with(func(d *Device) { d.Properties = map[string]string{"a": "\xff"} }),
		"2 mounts and 65":      with(func(d *Device) { d.DeviceSpecs = make([]DeviceSpec, 65) }),
		"a mount's path":       with(func(d *Device) { d.Mounts[0].HostPath = "/h/../etc" }),
		"must be absolute":     with(func(d *Device) { d.DeviceSpecs[0].HostPath = "dev" }),
		"letters r, w and m":   with(func(d *Device) { d.DeviceSpecs[0].Permissions = "rx" }),
		"a device of 70":       with(func(d *Device) { d.Properties = map[string]string{"a": strings.Repeat("x", 70_000)} }),
		"two devices have the": camera("first"),
	} {
		t.Run(name, func(t *testing.T) {
			got, problems, err := ParseDevices(Devices{camera("first"), d, camera("last")}.appendTo(nil), 10)
			require.NoError(t, err)
			require.Len(t, got, 2)
			require.Equal(t, 1, problems.Count)
			require.Contains(t, problems.String(), name)
		})
	}
	// A device that is no message.
	b := message(Devices{camera("first")}.appendTo(nil), 1, []byte("\x0a\xff"))
	got, problems, err := ParseDevices(Devices{camera("last")}.appendTo(b), 10)
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Contains(t, problems.String(), "can't be read")
	// No list at all.
	_, _, err = ParseDevices([]byte("\x0a\xff\xff"), 10)
	require.Error(t, err)
}

func TestAListIsBounded(t *testing.T) {
	var list Devices
	for i := range 20 {
		list = append(list, Device{ID: fmt.Sprint(i)})
	}
	got, problems, err := ParseDevices(list.appendTo(nil), 15)
	require.NoError(t, err)
	require.Equal(t, list[:15], got)
	require.Equal(t, 5, problems.Count)
	require.Contains(t, problems.String(), "more than 15 devices: the first ones count, and 5 are left out")
	list = nil
	for range 20 {
		list = append(list, Device{})
	}
	_, problems, err = ParseDevices(list.appendTo(nil), 15)
	require.NoError(t, err)
	require.Equal(t, 20, problems.Count)
	require.Contains(t, problems.String(), "17 problems more")
}

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint(i)] = ""
	}
	return m
}

// What is read of an answer passes its rules, and is read the same again.
func FuzzParseDevices(f *testing.F) {
	f.Add(Devices{camera("a"), camera("a"), {}}.appendTo(nil))
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _, err := ParseDevices(b, 8)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(got), 8)
		for _, d := range got {
			require.NoError(t, d.Check())
		}
		again, problems, err := ParseDevices(got.appendTo(nil), 8)
		require.NoError(t, err)
		require.Zero(t, problems.Count)
		require.Equal(t, got.appendTo(nil), again.appendTo(nil))
	})
}

func FuzzParseRegistration(f *testing.F) {
	f.Add(Registration{Contract: V0, Name: "onvif", Endpoint: "a:1", Network: true, Shared: true}.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range []Contract{V0, Proposal} {
			r, err := parseRegistration(b, c)
			if err != nil {
				continue
			}
			_ = CheckName(r.Name)
			again, err := parseRegistration(r.appendTo(nil), c)
			require.NoError(t, err)
			require.True(t, bytes.Equal(r.appendTo(nil), again.appendTo(nil)))
			_, _ = parseRequest(b, c)
		}
	})
}
