// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

func testCamera(id string) Device {
	return Device{
		ID: id, Properties: map[string]string{"URL": "rtsp://10.0.0.3/1", "MODEL": "größe 4"},
		Mounts:      []Mount{{ContainerPath: "/c", HostPath: "/h", ReadOnly: true}, {ContainerPath: "/d", HostPath: "/e"}},
		DeviceSpecs: []DeviceSpec{{ContainerPath: "/dev/video0", HostPath: "/dev/video0", Permissions: "rw"}},
	}
}

func TestMessagesAreReadAsTheyWereWritten(t *testing.T) {
	want := Devices{testCamera("a"), {ID: "b"}, testCamera("c")}
	got, wrong, err := readDevices(want.appendTo(nil))
	require.NoError(t, err)
	require.Empty(t, wrong)
	require.Equal(t, want, got)

	for _, r := range []Registration{
		{Contract: ContractV0, Name: "onvif", Endpoint: "/run/x/onvif.sock"},
		{Contract: ContractV0, Name: "onvif", Endpoint: "http://10.0.0.3:10000", Network: true, Shared: true},
		{Contract: ContractProposal, Name: "onvif", Endpoint: "/run/x/onvif.sock", Shared: true},
		{Contract: ContractProposal, Name: "onvif", Endpoint: "10.0.0.3:10000", Network: true},
	} {
		got, err := parseRegistration(r.appendTo(nil), r.Contract)
		require.NoError(t, err)
		require.Equal(t, r, got)
	}

	v0 := Request{Details: "a: b", Properties: map[string][]byte{"user": []byte("me"), "none": nil, "empty": {}}}
	back, err := parseRequest(v0.appendTo(nil, ContractV0), ContractV0)
	require.NoError(t, err)
	require.Equal(t, v0, back)
	old := Request{DetailsMap: map[string]string{"protocolHandler": "a: b", "other": ""}}
	back, err = parseRequest(old.appendTo(nil, ContractProposal), ContractProposal)
	require.NoError(t, err)
	require.Equal(t, old, back)
}

// The bytes are those that a generated encoder writes.
func TestBytesOnTheWire(t *testing.T) {
	require.Equal(t, "\x0a\x05onvif\x12\x03a:1\x18\x01\x20\x01",
		string(Registration{Contract: ContractV0, Name: "onvif", Endpoint: "a:1", Network: true, Shared: true}.appendTo(nil)))
	require.Equal(t, "\x0a\x01x\x12\x08\x0a\x01k\x12\x03\x0a\x01v",
		string(Request{Details: "x", Properties: map[string][]byte{"k": []byte("v")}}.appendTo(nil, ContractV0)))
	require.Equal(t, "\x0a\x1a\x0a\x02id\x12\x06\x0a\x01k\x12\x01v\x1a\x0c\x0a\x02/c\x12\x04/h/i\x18\x01",
		string(Devices{{ID: "id", Properties: map[string]string{"k": "v"}, Mounts: []Mount{{ContainerPath: "/c", HostPath: "/h/i", ReadOnly: true}}}}.appendTo(nil)))
}

func TestABadDeviceIsNamedAndTheOthersAreRead(t *testing.T) {
	b := appendMessage(Devices{testCamera("first")}.appendTo(nil), 1, []byte("\x0a\xff"))
	b = Devices{{ID: "large", Properties: map[string]string{"a": strings.Repeat("x", 70_000)}}, testCamera("last")}.appendTo(b)
	got, wrong, err := readDevices(b)
	require.NoError(t, err)
	require.Equal(t, Devices{testCamera("first"), testCamera("last")}, got)
	require.Len(t, wrong, 2)
	require.ErrorContains(t, wrong[0], "a device can't be read")
	require.ErrorContains(t, wrong[1], "at most 65536")
	_, _, err = readDevices([]byte("\x0a\xff\xff"))
	require.Error(t, err)
}

func readDevices(b []byte) (list Devices, wrong []error, err error) {
	err = EachDevice(b, func(d Device, w error) {
		if w != nil {
			wrong = append(wrong, w)
			return
		}
		list = append(list, d)
	})
	return list, wrong, err
}

func TestNamesAndAddresses(t *testing.T) {
	for _, name := range []string{"", "a\x00", "\xff", strings.Repeat("x", 254)} {
		require.Error(t, CheckName(name))
	}
	require.NoError(t, CheckName("onvif"))
	for _, address := range []string{"", ":1", "a", "a:", "a:0", "a:65536", "a:b"} {
		require.Error(t, CheckAddress(address), address)
	}
	require.NoError(t, CheckAddress("[::1]:80"))
	require.True(t, IsLoopback("127.0.0.1:80") && IsLoopback("[::1]:80") && IsLoopback("localhost:80"))
	require.False(t, IsLoopback("10.0.0.1:80") || IsLoopback(":80") || IsLoopback("127.0.0.1"))
}

// What is read of an answer is read the same again.
func FuzzParseDevices(f *testing.F) {
	f.Add(Devices{testCamera("a"), testCamera("a"), {}}.appendTo(nil))
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _, err := readDevices(b)
		if err != nil {
			return
		}
		again, wrong, err := readDevices(got.appendTo(nil))
		require.NoError(t, err)
		require.Empty(t, wrong)
		require.Equal(t, got.appendTo(nil), again.appendTo(nil))
	})
}

func FuzzParseRegistration(f *testing.F) {
	f.Add(Registration{Contract: ContractV0, Name: "onvif", Endpoint: "a:1", Network: true, Shared: true}.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range []Contract{ContractV0, ContractProposal} {
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
