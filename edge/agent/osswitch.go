// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// osSwitch has the host boot another OS image, and its former one again.
type osSwitch struct {
	*journal
	os    OS // nil: the host's OS is no image
	hooks *hookRunner
}

// maxRollbackReboots is how often the host is rebooted to have its OS image from before an update again.
const maxRollbackReboots = 3

// wanted reports whether a spec wants another OS image than the host has booted.
func (s *osSwitch) wanted(spec resource.RenderedSpec) bool {
	if spec.OS == nil || spec.OS.Image == "" || s.os == nil {
		return false
	}
	booted, err := s.os.Booted(context.Background())
	return err != nil || !sameImage(booted, spec.OS.Image)
}

// fetch downloads an OS image, unless the host has booted it.
func (s *osSwitch) fetch(ctx context.Context, image string) (done bool, err error) {
	if image == s.state.Downloaded.OS {
		return true, nil // for an earlier spec
	}
	if booted, err := s.os.Booted(ctx); err != nil || sameImage(booted, image) {
		return false, err
	}
	return s.os.Download(ctx, image)
}

// to makes the spec's OS image the one to boot next, unless it is booted: the host may have been booted since it was switched. What
// was booted before is on disk first, so that a roll-back returns to it from every point on.
func (s *osSwitch) to(ctx context.Context, u *specUpdate) error {
	booted, err := s.os.Booted(ctx)
	if err != nil || sameImage(booted, u.Spec.OS.Image) {
		return err
	}
	if u.OSBefore == nil {
		u.OSBefore = &booted
		if err := s.saveUpdate(*u); err != nil {
			return err
		}
	}
	return s.os.Switch(ctx, u.Spec.OS.Image, s.state.Downloaded.OS == u.Spec.OS.Image)
}

// reboot boots the host into the image that was made the next one, and says whether that succeeded once it has booted again.
func (s *osSwitch) reboot(ctx context.Context, u *specUpdate) error {
	if u.Boot == "" {
		if booted, err := s.os.Booted(ctx); err == nil && sameImage(booted, u.Spec.OS.Image) {
			return nil // by a boot that the agent did not order
		}
		if err := s.hooks.run(ctx, "beforeRebooting", *u); err != nil {
			return err
		}
		u.Boot = s.state.Boot
		if err := s.saveUpdate(*u); err != nil {
			return err
		}
	}
	if u.Boot == s.state.Boot {
		if err := s.os.Reboot(ctx); err != nil {
			return toFailure(ctx, resource.FailedOS, fmt.Errorf("the host can't be rebooted: %w", err))
		}
		<-ctx.Done() // the host ends the agent
		return ctx.Err()
	}
	booted, err := s.os.Booted(ctx)
	switch {
	case err != nil:
		return err
	case !sameImage(booted, u.Spec.OS.Image):
		return specFailure{resource.FailedOS, fmt.Sprintf("the host was rebooted and has booted %s, not %s", booted.Image, u.Spec.OS.Image)}
	}
	return nil
}

// rebootBack boots the host into the image that it had before an update. Each boot that is ended for it is counted on disk first.
func (s *osSwitch) rebootBack(ctx context.Context, u *specUpdate) error {
	if u.RollbackBoot != s.state.Boot {
		u.RollbackBoot, u.RollbackReboots = s.state.Boot, u.RollbackReboots+1
		if err := s.saveUpdate(*u); err != nil {
			return err
		}
	}
	return errors.Join(s.os.Reboot(ctx), errors.New("the host reboots into the OS image that it had before"))
}

// discard deletes an OS image that was downloaded, unless it is the one to keep.
func (s *osSwitch) discard(ctx context.Context, keep string) {
	image := s.state.Downloaded.OS
	if image == "" || image == keep || s.os == nil {
		return
	}
	err := s.os.Discard(ctx, image)
	err = errors.Join(err, s.save(func(s *agentState) { s.Downloaded.OS = "" }))
	if err != nil {
		s.log.Warn().Err(err).Str("image", image).Msg("an OS image that is no longer needed can't be deleted from the images of this host")
	}
}

// sameImage reports whether a reference, with a digest or without, is that of the booted image.
func sameImage(booted resource.OSStatus, image string) bool {
	if name, digest, ok := strings.Cut(image, "@"); ok && booted.ImageDigest != "" {
		bare, _, _ := strings.Cut(booted.Image, "@")
		return digest == booted.ImageDigest && (bare == name || strings.HasPrefix(bare, name+":") || strings.HasPrefix(name, bare+":"))
	}
	return booted.Image == image
}
