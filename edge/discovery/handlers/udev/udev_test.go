// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// testHost is a directory with a sysfs and a database of udevd.
type testHost struct {
	*testing.T
	dir string
}

func newTestHost(t *testing.T) testHost {
	h := testHost{t, t.TempDir()}
	h.device("/devices/pci0/usb1", map[string]string{"uevent": "DEVTYPE=usb_device\nDRIVER=usb\nDEVNAME=bus/usb/001/001\nMAJOR=189\nMINOR=0\n", "idVendor": "1d6b\n"}, "usb", "usb")
	h.camera("video0", "81", "0")
	h.camera("video1", "81", "1")
	h.device("/devices/virtual/tty/tty1", map[string]string{"uevent": "MAJOR=4\nMINOR=1\nDEVNAME=tty1\n"}, "tty", "")
	h.write("run/udev/data/c81:0", "S:v4l/by-id/x\nE:ID_SERIAL=cam-1\nE:ID_V4L_CAPABILITIES=:capture:\nG:seat\nG:uaccess\nQ:seat\n")
	return h
}

// camera is a video device below a function of a USB device.
func (h testHost) camera(name, major, minor string) {
	h.device("/devices/pci0/usb1/1-"+minor, map[string]string{"uevent": "DEVTYPE=usb_device\nDRIVER=usb\n", "idVendor": "05a9\n"}, "usb", "usb")
	h.device("/devices/pci0/usb1/1-"+minor+"/video4linux/"+name, map[string]string{
		"uevent": "MAJOR=" + major + "\nMINOR=" + minor + "\nDEVNAME=" + name + "\n", "name": "Camera " + minor + "\n",
	}, "video4linux", "")
}

func (h testHost) write(name, text string) {
	path := filepath.Join(h.dir, name)
	require.NoError(h, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h, os.WriteFile(path, []byte(text), 0o600))
}

func (h testHost) device(devpath string, files map[string]string, subsystem, driver string) {
	for name, text := range files {
		h.write("sys"+devpath+"/"+name, text)
	}
	link := func(target, name string) {
		require.NoError(h, os.MkdirAll(filepath.Dir(filepath.Join(h.dir, name)), 0o755))
		require.NoError(h, os.MkdirAll(filepath.Join(h.dir, target), 0o755))
		require.NoError(h, os.Symlink(filepath.Join(h.dir, target), filepath.Join(h.dir, name)))
	}
	link("sys/class/"+subsystem, "sys"+devpath+"/subsystem")
	if driver != "" {
		link("sys/bus/x/drivers/"+driver, "sys"+devpath+"/driver")
	}
	link("sys"+devpath, "sys/class/"+subsystem+"/"+filepath.Base(devpath))
}

func (h testHost) remove(subsystem, devpath string) {
	require.NoError(h, os.Remove(filepath.Join(h.dir, "sys/class", subsystem, filepath.Base(devpath))))
	require.NoError(h, os.RemoveAll(filepath.Join(h.dir, "sys", devpath)))
}

// discover runs the handler, and returns the lists that it finds.
func (h testHost) discover(details string, events chan struct{}) (<-chan []handler.Device, <-chan error) {
	u := Program.New(handler.Env{Sys: filepath.Join(h.dir, "sys"), Log: zerolog.Nop()}).(*ruleHandler)
	u.gather = time.Millisecond
	u.events = func(context.Context) (<-chan struct{}, error) { return events, nil }
	ctx, cancel := context.WithCancel(context.Background())
	found, done := make(chan []handler.Device, 100), make(chan error, 1)
	go func() { done <- u.Discover(ctx, details, nil, func(d []handler.Device) { found <- d }) }()
	h.Cleanup(cancel)
	return found, done
}

func (h testHost) find(details string) (names []string) {
	h.Helper()
	found, done := h.discover(details, nil)
	select {
	case devices := <-found:
		for _, d := range devices {
			names = append(names, filepath.Base(d.ID))
		}
	case err := <-done:
		require.NoError(h, err)
	}
	return names
}

func TestRules(t *testing.T) {
	h := newTestHost(t)
	for rule, want := range map[string][]string{
		`KERNEL=="video[0-9]*"`:                                    {"video0", "video1"},
		`KERNEL=="video0|tty*"`:                                    {"video0", "tty1"},
		`KERNEL=="video"`:                                          nil,
		`SUBSYSTEM=="video4linux", KERNEL!="video0"`:               {"video1"},
		`SUBSYSTEM!="usb"`:                                         {"video0", "video1", "tty1"},
		`ATTR{idVendor}=="05a9"`:                                   {"1-0", "1-1"},
		`ATTR{name}=="Camera ?"`:                                   {"video0", "video1"},
		`ATTR{name}!="Camera 0", SUBSYSTEM=="video4linux"`:         {"video1"},
		`KERNEL=="video*", ATTRS{idVendor}=="05a9"`:                {"video0", "video1"},
		`KERNEL=="video*", ATTRS{idVendor}=="1d6b"`:                {"video0", "video1"},
		`KERNEL=="video*", ATTRS{idVendor}!="05a9"`:                nil,
		`DRIVER=="usb"`:                                            {"usb1", "1-0", "1-1"},
		`DRIVER!="usb"`:                                            {"video0", "video1", "tty1"},
		`DRIVERS=="usb", SUBSYSTEM=="video4linux"`:                 {"video0", "video1"},
		`KERNELS=="1-0", KERNEL=="video*"`:                         {"video0"},
		`SUBSYSTEMS=="usb", KERNEL=="video*"`:                      {"video0", "video1"},
		`SUBSYSTEMS=="(usb|pci)", KERNEL=="video0"`:                {"video0"}, // an expression, as Akri has it
		`ENV{ID_SERIAL}=="cam-*"`:                                  {"video0"},
		`ENV{DEVTYPE}=="usb_device", KERNEL=="usb*"`:               {"usb1"},
		`TAG=="uaccess"`:                                           {"video0"},
		`TAG!="seat", KERNEL=="video*"`:                            {"video1"},
		`TAGS=="seat"`:                                             {"video0"},
		`DEVPATH=="/devices/virtual/tty/tty1"`:                     {"tty1"},
		`DEVPATH!="/devices/pci0/*"`:                               {"tty1"},
		`ATTR{../../idVendor}=="05a9"`:                             nil, // not outside of the device
		`  KERNEL == "tty1" ,SUBSYSTEM=="tty"  `:                   {"tty1"},
		`ENV{ID_V4L_CAPABILITIES}=="*:capture:*", SUBSYSTEM=="v*"`: {"video0"},
	} {
		require.Equal(t, want, h.find("udevRules:\n- '"+rule+"'\n"), rule)
	}
	require.Len(t, h.find(`udevRules: [""]`), 6)
	require.Empty(t, h.find(`udevRules: []`))
}

func TestBadDetails(t *testing.T) {
	h := newTestHost(t)
	for details, wrong := range map[string]string{
		``:                                    "udevRules: is required",
		`rules: []`:                           "there is no field rules",
		`udevRules: ['TYPO=="x"']`:            "udevRules[0]: TYPO is no key of udev",
		`udevRules: ['ACTION=="add"']`:        "ACTION can't be matched here",
		`udevRules: ['KERNEL="x"']`:           "the operator = changes a device",
		`udevRules: ['KERNEL+="x"']`:          "the operator += changes a device",
		`udevRules: ['ATTR=="x"']`:            "ATTR has no name, as ATTR{name}",
		`udevRules: ['KERNEL{x}=="x"']`:       "KERNEL has no name, and {x} is given",
		`udevRules: ['KERNEL=="["']`:          `"[" is no pattern`,
		`udevRules: ['KERNEL==x']`:            `is not KEY=="value"`,
		`udevRules: ['KERNEL=="x" TAG=="y"']`: "a comma is missing",
		`{udevRules: [], interval: 10ms}`:     "interval: 10ms: must be 1s or more",
		`{udevRules: [], permissions: rx}`:    "permissions",
	} {
		_, done := h.discover(details, nil)
		err := <-done
		require.ErrorContains(t, err, wrong, details)
		require.True(t, handler.IsInvalidArgument(err))
	}
}

// Patterns are a user's: none takes long, and one that would need much memory as an expression is none.
func TestPatternsAreBounded(t *testing.T) {
	p, err := parsePattern("((a{1000}){1000}){1000}", true)
	require.NoError(t, err)
	require.Nil(t, p.expression)
	for _, value := range []string{"(a*)*b", "(a|aa)+b", strings.Repeat("a*", 1000) + "b"} {
		p, err := parsePattern(value, true)
		require.NoError(t, err)
		require.False(t, p.match(strings.Repeat("a", 5000)), value)
	}
}

func TestWhatIsFound(t *testing.T) {
	h := newTestHost(t)
	found, _ := h.discover(`{udevRules: ['KERNEL=="video0"'], env: [ID_SERIAL, NONE], permissions: r}`, nil)
	path := "/devices/pci0/usb1/1-0/video4linux/video0"
	require.Equal(t, []handler.Device{{
		ID: path, Properties: map[string]string{"UDEV_DEVPATH": path, "UDEV_DEVNODE": "/dev/video0", "ID_SERIAL": "cam-1"},
		DeviceSpecs: []handler.DeviceSpec{{ContainerPath: "/dev/video0", HostPath: "/dev/video0", Permissions: "r"}},
	}}, <-found)
	// A device with all that is below it, as Akri groups them.
	found, _ = h.discover(`{udevRules: ['KERNEL=="video*"', 'KERNEL=="usb1"'], groupRecursive: true}`, nil)
	devices := <-found
	require.Len(t, devices, 1)
	require.Equal(t, map[string]string{
		"UDEV_DEVPATH": "/devices/pci0/usb1", "UDEV_DEVNODE": "/dev/bus/usb/001/001", "UDEV_DEVNODE_1": "/dev/video0", "UDEV_DEVNODE_2": "/dev/video1",
	}, devices[0].Properties)
	require.Len(t, devices[0].DeviceSpecs, 3)
}

func TestADeviceIsUnplugged(t *testing.T) {
	h := newTestHost(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	kernel := os.NewFile(uintptr(pair[1]), "kernel")
	defer func() { _ = kernel.Close() }()
	events := make(chan struct{})
	from := receiveDatagrams(t.Context(), os.NewFile(uintptr(pair[0]), "uevents"))
	go func() {
		for range from {
			events <- struct{}{}
		}
	}()
	found, _ := h.discover(`{udevRules: ['KERNEL=="video*"'], interval: 1h}`, events)
	require.Len(t, <-found, 2)
	h.remove("video4linux", "/devices/pci0/usb1/1-1/video4linux/video1")
	_, err = kernel.WriteString("remove@/devices/pci0/usb1/1-1/video4linux/video1\x00ACTION=remove\x00SUBSYSTEM=video4linux\x00")
	require.NoError(t, err)
	require.Len(t, <-found, 1)
	// What is no event of the kernel only has the handler look again.
	_, err = kernel.WriteString("\xff\x00")
	require.NoError(t, err)
	require.Len(t, <-found, 1)
	h.camera("video2", "81", "2")
	_, err = kernel.WriteString("libudev\x00")
	require.NoError(t, err)
	require.Len(t, <-found, 2)
}

func TestEventsAreReceivedAgain(t *testing.T) {
	h := newTestHost(t)
	u := Program.New(handler.Env{Sys: filepath.Join(h.dir, "sys"), Log: zerolog.Nop()}).(*ruleHandler)
	u.gather = time.Millisecond
	var kernels []*os.File
	u.events = func(ctx context.Context) (<-chan struct{}, error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, os.NewFile(uintptr(pair[1]), "kernel"))
		return receiveDatagrams(ctx, os.NewFile(uintptr(pair[0]), "uevents")), nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, u.Discover(ctx, `{udevRules: ['KERNEL=="video*"'], interval: 1s}`, nil, func([]handler.Device) {
		if len(kernels) > 2 {
			cancel()
		}
		_ = kernels[len(kernels)-1].Close() // and the socket can be read no longer
	}))
}

func TestThisHost(t *testing.T) {
	if _, err := os.Stat("/sys/class/mem/null"); err != nil {
		t.Skip("no /sys/class/mem/null")
	}
	u := Program.New(handler.Env{Log: zerolog.Nop()})
	ctx, cancel := context.WithCancel(t.Context())
	err := u.Discover(ctx, `udevRules: ['KERNEL=="null", SUBSYSTEM=="mem"']`, nil, func(d []handler.Device) {
		require.Len(t, d, 1)
		require.Equal(t, "/dev/null", d[0].Properties["UDEV_DEVNODE"])
		cancel()
	})
	require.NoError(t, err)
}

func FuzzParseRule(f *testing.F) {
	f.Add(`KERNEL=="video[0-9]*", ATTRS{idVendor}!="05a9"`)
	h := &device{devpath: "/devices/x"}
	f.Fuzz(func(_ *testing.T, text string) {
		if r, err := parseRule(text); err == nil {
			r.match(h)
		}
	})
}

func TestDeviceFilesAreInTheDirectoryThatIsGiven(t *testing.T) {
	h := newTestHost(t)
	for dev, want := range map[string]string{"": "/dev/video0", "/host/dev": "/host/dev/video0"} {
		u := Program.New(handler.Env{Sys: filepath.Join(h.dir, "sys"), Dev: dev, Log: zerolog.Nop()}).(*ruleHandler)
		u.events = func(context.Context) (<-chan struct{}, error) { return make(chan struct{}), nil }
		ctx, cancel := context.WithCancel(t.Context())
		err := u.Discover(ctx, `udevRules: ['KERNEL=="video0"']`, nil, func(devices []handler.Device) {
			require.Equal(t, want, devices[0].Properties["UDEV_DEVNODE"])
			require.Equal(t, want, devices[0].DeviceSpecs[0].HostPath)
			cancel()
		})
		require.NoError(t, err)
	}
}
