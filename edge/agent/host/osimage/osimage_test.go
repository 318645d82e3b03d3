// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// The test's own program is the stand-in for bootc: it keeps deployments in a file as bootc does, and a "reboot" boots what is next.
func TestMain(m *testing.M) {
	if path := os.Getenv("BOOTC_STAND_IN"); path != "" {
		if err := actAsBootc(path, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// imageHost is the state of the stand-in. Tags are what the registry has.
type imageHost struct {
	Booted, Staged, Previous *Deployment
	Tracked                  string
	Queued                   bool
	Tags                     map[string]string
	Stored                   map[string]string // images that podman has, by name
	Local                    bool              // Tracked is one of them
	Downloads                int               // from the registry, by podman and by bootc
	Falls                    bool              // its boot loader doesn't boot what is staged, and goes back
}

func loadImageHost(path string) (m imageHost, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

func (m imageHost) save(path string) error {
	text, _ := json.Marshal(m)
	return os.WriteFile(path, text, 0o600)
}

func actAsBootc(path string, args []string) error {
	m, err := loadImageHost(path)
	if err != nil {
		return err
	}
	switch args[0] {
	case "status":
		return json.NewEncoder(os.Stdout).Encode(m.status())
	case "pull": // podman's
		image := args[len(args)-1]
		if m.Tags[image] == "" {
			return fmt.Errorf("%s: manifest unknown", image)
		}
		if m.Stored[image] == "" {
			m.Downloads++
		}
		m.Stored = map[string]string{image: m.Tags[image]}
	case "rmi":
		if m.Stored[args[1]] == "" {
			return fmt.Errorf("%s: image not known", args[1])
		}
		delete(m.Stored, args[1])
	case "switch":
		image, local := args[len(args)-1], args[1] == "--transport"
		if image == m.Tracked && local == m.Local {
			return nil // Image specification is unchanged.
		}
		if local && m.Stored[image] == "" {
			return fmt.Errorf("%s: no such image in containers-storage", image)
		}
		m.Tracked, m.Local = image, local
		err = m.stage()
	case "upgrade":
		err = m.stage()
	case "rollback":
		if m.Previous == nil {
			return errors.New("no rollback available")
		}
		m.Queued, m.Staged = !m.Queued, nil
	case "reboot":
		m.boot()
	}
	return errors.Join(err, m.save(path))
}

func (m *imageHost) stage() error {
	digest, ok := m.Tags[m.Tracked]
	if m.Local {
		digest, ok = m.Stored[m.Tracked]
	} else {
		m.Downloads++
	}
	if !ok {
		return fmt.Errorf("%s: manifest unknown", m.Tracked)
	}
	m.Staged, m.Queued = &Deployment{m.Tracked, digest}, false
	return nil
}

func (m *imageHost) boot() {
	switch {
	case m.Staged != nil && m.Falls:
		m.Previous, m.Staged = m.Staged, nil
	case m.Staged != nil:
		m.Booted, m.Staged, m.Previous = m.Staged, nil, m.Booted
	case m.Queued:
		m.Booted, m.Previous = m.Previous, m.Booted
		m.Tracked = m.Booted.Image
	}
	m.Queued = false
}

func (m imageHost) status() any {
	type dict = map[string]any
	entry := func(d *Deployment) any {
		if d == nil {
			return nil
		}
		return dict{"image": dict{"image": dict{"image": d.Image, "transport": "registry"}, "imageDigest": d.Digest}}
	}
	return dict{
		"apiVersion": "org.containers.bootc/v1", "kind": "BootcHost", "spec": dict{"image": dict{"image": m.Tracked, "transport": map[bool]string{true: "containers-storage", false: "registry"}[m.Local]}},
		"status": dict{"booted": entry(m.Booted), "staged": entry(m.Staged), "rollback": entry(m.Previous), "rollbackQueued": m.Queued},
	}
}

// newImageHost is a host with the stand-in as its bootc.
func newImageHost(t *testing.T) (*OS, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machine.json")
	t.Setenv("BOOTC_STAND_IN", path)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	old := Deployment{"quay.io/acme/os:1", "sha256:01"}
	require.NoError(t, imageHost{
		Booted: &old, Tracked: old.Image,
		Tags: map[string]string{"quay.io/acme/os:1": "sha256:01", "quay.io/acme/os:2": "sha256:02", "quay.io/acme/os@sha256:01": "sha256:01"},
	}.save(path))
	self, err := os.Executable()
	require.NoError(t, err)
	c := BootcCommands()
	for _, argv := range []*[]string{&c.Status, &c.Switch, &c.Upgrade, &c.Rollback, &c.Download, &c.SwitchDownloaded, &c.Discard} {
		(*argv)[0] = self
	}
	c.Reboot = []string{self, "reboot"}
	return New(c), path
}

// imageBefore is the image that the host has booted before a test.
var imageBefore = resource.OSStatus{Image: "quay.io/acme/os:1", ImageDigest: "sha256:01"}

func bootedImage(t *testing.T, o *OS) string {
	t.Helper()
	s, err := o.Booted(t.Context())
	require.NoError(t, err)
	return s.Image
}

func changeImageHost(t *testing.T, path string, f func(*imageHost)) {
	t.Helper()
	m, err := loadImageHost(path)
	require.NoError(t, err)
	f(&m)
	require.NoError(t, m.save(path))
}

const firstImage, secondImage = "quay.io/acme/os:1", "quay.io/acme/os:2"

func TestAHostIsSwitchedAndPutBack(t *testing.T) {
	o, _ := newImageHost(t)
	require.True(t, o.Available())
	require.NoError(t, o.Switch(t.Context(), secondImage, false))
	require.NoError(t, o.Switch(t.Context(), secondImage, false), "again, as after a crash")
	require.Equal(t, firstImage, bootedImage(t, o))
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, secondImage, bootedImage(t, o))

	for range 2 { // again, as after a crash before the reboot
		reboot, err := o.Rollback(t.Context(), imageBefore)
		require.NoError(t, err)
		require.True(t, reboot)
	}
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, firstImage, bootedImage(t, o))
	reboot, err := o.Rollback(t.Context(), imageBefore)
	require.NoError(t, err)
	require.False(t, reboot)
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, firstImage, bootedImage(t, o))
}

// What is staged is not booted by a later reboot if the update is given up before.
func TestAStagedImageIsTakenBack(t *testing.T) {
	o, path := newImageHost(t)
	require.NoError(t, o.Switch(t.Context(), secondImage, false))
	changeImageHost(t, path, func(m *imageHost) { m.Tags[firstImage] = "sha256:03" }) // the tag moves meanwhile
	reboot, err := o.Rollback(t.Context(), imageBefore)
	require.NoError(t, err)
	require.False(t, reboot)
	require.NoError(t, o.Reboot(t.Context()))
	s, err := o.Booted(t.Context())
	require.NoError(t, err)
	require.Equal(t, "sha256:01", s.ImageDigest)
}

// A boot loader that has gone back by itself is left alone: bootc's rollback would boot the image that doesn't come up.
func TestAHostThatWentBackByItself(t *testing.T) {
	o, path := newImageHost(t)
	changeImageHost(t, path, func(m *imageHost) { m.Falls = true })
	require.NoError(t, o.Switch(t.Context(), secondImage, false))
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, firstImage, bootedImage(t, o))
	reboot, err := o.Rollback(t.Context(), imageBefore)
	require.NoError(t, err)
	require.False(t, reboot)

	changeImageHost(t, path, func(m *imageHost) { m.Falls = false })
	require.NoError(t, o.Switch(t.Context(), secondImage, false), "bootc tracks it already")
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, secondImage, bootedImage(t, o))
}

func TestWhatBootcRefuses(t *testing.T) {
	o, _ := newImageHost(t)
	require.ErrorContains(t, o.Switch(t.Context(), "quay.io/acme/os:9", false), "manifest unknown")
	require.ErrorContains(t, o.Switch(t.Context(), "--help", false), "is not a reference")
	reboot, err := o.Rollback(t.Context(), imageBefore)
	require.NoError(t, err, "nothing was switched")
	require.False(t, reboot)
	require.False(t, New(Commands{Status: []string{"no-such-program"}}).Available())
}

// An image that was downloaded is switched to without the registry, also after the boot loader has gone back. One that is gone is downloaded
// by the switch.
func TestAHostIsSwitchedToADownloadedImage(t *testing.T) {
	o, path := newImageHost(t)
	state := func() imageHost {
		m, err := loadImageHost(path)
		require.NoError(t, err)
		return m
	}
	download := func(image string) {
		done, err := o.Download(t.Context(), image)
		require.NoError(t, err)
		require.True(t, done)
	}
	download(secondImage)
	download(secondImage)
	require.Equal(t, firstImage, bootedImage(t, o))
	require.Nil(t, state().Staged, "a reboot changes nothing")
	tags := state().Tags
	changeImageHost(t, path, func(m *imageHost) { m.Tags, m.Falls = nil, true })
	require.NoError(t, o.Switch(t.Context(), secondImage, true))
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, firstImage, bootedImage(t, o), "its boot loader has gone back")
	changeImageHost(t, path, func(m *imageHost) { m.Falls = false })
	require.NoError(t, o.Switch(t.Context(), secondImage, true), "bootc tracks it already")
	require.Equal(t, 1, state().Downloads)
	require.NoError(t, o.Discard(t.Context(), secondImage))
	require.ErrorContains(t, o.Discard(t.Context(), secondImage), "image not known")
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, secondImage, bootedImage(t, o))

	third := "quay.io/acme/os:3"
	tags[third] = "sha256:03"
	changeImageHost(t, path, func(m *imageHost) { m.Tags = tags })
	download(third)
	require.NoError(t, o.Discard(t.Context(), third))
	require.NoError(t, o.Switch(t.Context(), third, true))
	require.NoError(t, o.Reboot(t.Context()))
	require.Equal(t, third, bootedImage(t, o))

	_, err := o.Download(t.Context(), "quay.io/acme/os:9")
	require.ErrorContains(t, err, "manifest unknown")
	require.ErrorContains(t, o.Switch(t.Context(), "quay.io/acme/os:9", true), "manifest unknown")
	done, err := New(Commands{Status: []string{"true"}}).Download(t.Context(), secondImage)
	require.NoError(t, err)
	require.False(t, done, "the switch downloads it")
}

func TestParseStatus(t *testing.T) {
	_, err := ParseStatus([]byte(`{"status":{"booted":null,"type":null}}`))
	require.ErrorContains(t, err, "has booted no OS image")
	_, err = ParseStatus([]byte(`[]`))
	require.ErrorContains(t, err, "not that of bootc")
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte(`{"spec":{"image":{"image":"a"}},"status":{"booted":{"image":{"image":{"image":"a:1"},"imageDigest":"sha256:1"}},"staged":null}}`))
	f.Add([]byte(`{"status":{"booted":{"image":null}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseStatus(text)
		if err != nil {
			return
		}
		require.NotEmpty(t, s.Booted.Image)
		do, _ := s.RollbackAction(s.Booted)
		require.NotEqual(t, DoRollback, do, "what is booted needs no rollback")
	})
}
