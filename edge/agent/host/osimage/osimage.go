// SPDX-License-Identifier: Apache-2.0

// Package osimage switches a host whose operating system is an image, by bootc or by commands of the same kind. It never downloads an
// image itself, and it has no memory: its caller notes which image was booted before a switch, and which one was downloaded.
package osimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/subprocess"
	"github.com/edgebus/edgebus/topics/resource"
)

// Commands are the argument vectors that change the host. {image} in them is the reference of the image. Status must print what
// `bootc status --json` does.
type Commands struct {
	Status, Switch, Upgrade, Rollback, Reboot []string
	// Download is optional: without it Switch downloads the image. SwitchDownloaded is Switch for an image that was downloaded, if that is
	// another command, and Discard deletes it where Download has put it, if that is to be done.
	Download, SwitchDownloaded, Discard []string
}

// BootcCommands are the commands of a host with bootc.
func BootcCommands() Commands {
	return Commands{
		Status: []string{"bootc", "status", "--json"}, Switch: []string{"bootc", "switch", "{image}"}, Upgrade: []string{"bootc", "upgrade"},
		Rollback: []string{"bootc", "rollback"}, Reboot: []string{"systemctl", "reboot"},
		Download:         []string{"podman", "pull", "--quiet", "{image}"},
		SwitchDownloaded: []string{"bootc", "switch", "--transport", "containers-storage", "{image}"},
		Discard:          []string{"podman", "rmi", "{image}"},
	}
}

// Deployment is an image that the host could boot.
type Deployment struct {
	Image  string `json:"image"`
	Digest string `json:"digest"`
}

// pinned is the reference of exactly this image, which a tag that has moved isn't.
func (d Deployment) pinned() string {
	if d.Digest == "" || strings.Contains(d.Image, "@") {
		return d.Image
	}
	name := d.Image
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name + "@" + d.Digest
}

// sameImage says whether two deployments are of one image.
func (d Deployment) sameImage(o Deployment) bool {
	if d.Digest != "" && o.Digest != "" {
		return d.Digest == o.Digest
	}
	return d.Image == o.Image
}

// Status is what a host has booted, what it boots next, and what it had before.
type Status struct {
	Booted           Deployment
	Staged, Previous *Deployment
	// Tracked is the image that updates come from, and TrackedLocal says that they come from this host's storage of images.
	Tracked      string
	TrackedLocal bool
	// RollbackQueued says that Previous is booted next.
	RollbackQueued bool
}

// ParseStatus reads what `bootc status --json` prints.
func ParseStatus(text []byte) (Status, error) {
	type entry struct {
		Image *struct {
			Image  struct{ Image string }
			Digest string `json:"imageDigest"`
		}
	}
	var host struct {
		Spec struct {
			Image *struct{ Image, Transport string }
		}
		Status struct {
			Booted, Staged, Rollback *entry
			RollbackQueued           bool
		}
	}
	if err := json.Unmarshal(text, &host); err != nil {
		return Status{}, fmt.Errorf("the OS image's status is not that of bootc: %w", err)
	}
	deployment := func(e *entry) *Deployment {
		if e == nil || e.Image == nil {
			return nil
		}
		return &Deployment{e.Image.Image.Image, e.Image.Digest}
	}
	booted := deployment(host.Status.Booted)
	if booted == nil || booted.Image == "" {
		return Status{}, errors.New("the host has booted no OS image")
	}
	s := Status{Booted: *booted, Staged: deployment(host.Status.Staged), Previous: deployment(host.Status.Rollback), RollbackQueued: host.Status.RollbackQueued}
	if host.Spec.Image != nil {
		s.Tracked, s.TrackedLocal = host.Spec.Image.Image, host.Spec.Image.Transport == "containers-storage"
	}
	return s, nil
}

// What Switching and Returning say is to be done.
const (
	DoNothing          = ""
	DoSwitch           = "switch"
	DoSwitchDownloaded = "switch to what was downloaded"
	DoUpgrade          = "upgrade"
	DoRollback         = "rollback"
)

// SwitchAction says how image becomes the one that is booted next.
func (s Status) SwitchAction(image string, downloaded bool) string {
	switch {
	case s.Staged != nil && (s.Staged.Image == image || s.Staged.pinned() == image):
		return DoNothing
	case s.Tracked == image && s.Booted.Image != image && s.TrackedLocal == downloaded:
		return DoUpgrade // bootc takes a switch to what it tracks for done
	case downloaded:
		return DoSwitchDownloaded
	}
	return DoSwitch
}

// RollbackAction says how before, which was booted before a switch, becomes the image that the host runs, and whether it must be rebooted for
// that.
func (s Status) RollbackAction(before Deployment) (do string, reboot bool) {
	switch {
	case s.Booted.sameImage(before) && s.Staged != nil && !s.Staged.sameImage(before):
		return DoSwitch, false // what is staged would be booted next
	case s.Booted.sameImage(before):
		return DoNothing, false
	case s.RollbackQueued, s.Staged != nil && s.Staged.sameImage(before):
		return DoNothing, true
	case s.Previous != nil && s.Previous.sameImage(before):
		return DoRollback, true
	}
	return DoSwitch, true
}

// OS is a host's operating system.
type OS struct {
	commands Commands
	timeout  time.Duration
}

// New makes an OS.
func New(c Commands) *OS {
	return &OS{commands: c, timeout: time.Hour}
}

// Available says whether the program of the status is installed.
func (o *OS) Available() bool {
	if len(o.commands.Status) == 0 {
		return false
	}
	_, err := exec.LookPath(o.commands.Status[0])
	return err == nil
}

// Status asks the host.
func (o *OS) Status(ctx context.Context) (Status, error) {
	out, err := o.run(ctx, o.commands.Status, "")
	if err != nil {
		return Status{}, err
	}
	return ParseStatus(out)
}

// Booted is the image that the host has booted.
func (o *OS) Booted(ctx context.Context) (resource.OSStatus, error) {
	s, err := o.Status(ctx)
	return resource.OSStatus{Image: s.Booted.Image, ImageDigest: s.Booted.Digest}, err
}

// Download downloads an image without changing what is booted next. It reports whether that was done: without a program for it the image is
// left to Switch.
func (o *OS) Download(ctx context.Context, image string) (done bool, err error) {
	if len(o.commands.Download) == 0 {
		return false, nil
	}
	if _, err := exec.LookPath(o.commands.Download[0]); err != nil {
		return false, nil //nolint:nilerr // the switch needs no such program
	}
	_, err = o.run(ctx, o.commands.Download, image)
	return err == nil, err
}

// Discard deletes what Download has left.
func (o *OS) Discard(ctx context.Context, image string) error {
	if len(o.commands.Discard) == 0 {
		return nil
	}
	_, err := o.run(ctx, o.commands.Discard, image)
	return err
}

// Switch makes an image the one that is booted next. It may be done again. If the image was downloaded and is gone, it is downloaded again.
func (o *OS) Switch(ctx context.Context, image string, downloaded bool) error {
	s, err := o.Status(ctx)
	if err != nil {
		return err
	}
	downloaded = downloaded && len(o.commands.SwitchDownloaded) > 0
	err = o.do(ctx, s.SwitchAction(image, downloaded), image)
	if err == nil || !downloaded || ctx.Err() != nil {
		return err
	}
	if again := o.do(ctx, s.SwitchAction(image, false), image); again != nil {
		return errors.Join(err, again)
	}
	return nil
}

// Rollback makes the image that was booted before a Switch the one that the host runs, and says whether it must be rebooted for that. It
// may be done again, and where nothing was switched it does nothing.
func (o *OS) Rollback(ctx context.Context, before resource.OSStatus) (reboot bool, err error) {
	s, err := o.Status(ctx)
	if err != nil {
		return false, err
	}
	d := Deployment{before.Image, before.ImageDigest}
	do, reboot := s.RollbackAction(d)
	return reboot, o.do(ctx, do, d.pinned())
}

func (o *OS) do(ctx context.Context, what, image string) error {
	argv := map[string][]string{
		DoSwitch: o.commands.Switch, DoSwitchDownloaded: o.commands.SwitchDownloaded, DoUpgrade: o.commands.Upgrade, DoRollback: o.commands.Rollback,
	}[what]
	if what == DoNothing {
		return nil
	}
	_, err := o.run(ctx, argv, image)
	return err
}

// Reboot reboots the host.
func (o *OS) Reboot(ctx context.Context) error {
	_, err := o.run(ctx, o.commands.Reboot, "")
	return err
}

func (o *OS) run(ctx context.Context, argv []string, image string) ([]byte, error) {
	if len(argv) == 0 {
		return nil, errors.New("no command is configured for this")
	}
	if strings.HasPrefix(image, "-") {
		return nil, fmt.Errorf("os.image: %q is not a reference", image)
	}
	argv = slices.Clone(argv)
	for i := range argv {
		argv[i] = strings.ReplaceAll(argv[i], "{image}", image)
	}
	out, err := subprocess.Command{Argv: argv, Time: o.timeout}.Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return out, nil
}
