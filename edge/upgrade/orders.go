// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// orderKind is what differs between orders of a version, of settings and of images. The steps are the same, and so is what is on disk.
type orderKind struct {
	// stage does what changes nothing that runs.
	stage func(context.Context, resource.UpgradeOrder) (prepareResult, error)
	// backUp keeps what revert and restore need.
	backUp func(context.Context) error
	// apply has the next start of the core be with what is new, and revert with what was before. Each may be repeated.
	apply, revert func(context.Context, upgradeRecord) error
	// restores says that the core's data may be put back if the core does not run with what was before.
	restores bool
	// done is what there is to say when it has succeeded.
	done string
}

// kindOf is what there is to do for an order.
func (u *Upgrader) kindOf(o resource.UpgradeOrder) orderKind {
	switch {
	case len(o.Images) > 0:
		return orderKind{stage: u.pullImages}
	case len(o.Settings) > 0:
		return orderKind{
			stage: u.settings.prepare, backUp: u.settings.backUp, apply: u.settings.apply, revert: u.settings.revert,
			done: "the core runs with the new values of " + strings.Join(slices.Sorted(maps.Keys(o.Settings)), ", "),
		}
	}
	v := versionOrders{u.journal, u.versions, u.core, u.services, u.o.Allows, u.o.Run, u.keptVersions}
	return orderKind{stage: v.stage, backUp: u.core.backUp, apply: v.apply, revert: v.revert, restores: true}
}

// newName is the core that is tried, and before the one to which it returns, for people.
func (up upgradeRecord) newName() string {
	if up.Order.Version == "" {
		return "the core with the new settings"
	}
	return "version " + up.Order.Version
}

func (up upgradeRecord) previousName() string {
	if up.Order.Version == "" {
		return "the core with the settings before"
	}
	return "version " + up.From
}

// pullImages pulls images one after another. There is nothing to take back: what was pulled stays.
func (u *Upgrader) pullImages(ctx context.Context, o resource.UpgradeOrder) (p prepareResult, err error) {
	if u.o.Pull == nil {
		return p, failf(resource.UpgradeFailedPull, "this agent runs no containers, so it pulls no images")
	}
	if err := u.core.checkUsage(ctx, o); err != nil {
		return p, err
	}
	for i, image := range o.Images {
		at := fmt.Sprintf("image %d of %d, %s", i+1, len(o.Images), image)
		u.progress(stepPull, errors.New(at))
		u.hook(stepPull)
		if err := u.o.Pull(ctx, image); err != nil {
			return p, toFailure(ctx, resource.UpgradeFailedPull, fmt.Errorf("%s: %w", at, err))
		}
	}
	return prepareResult{resultNothing, "pulled " + strings.Join(o.Images, ", ")}, nil
}
