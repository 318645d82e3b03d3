package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/configs"
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
			stage: u.stageSettings, backUp: u.keepSettings, apply: u.applySettings, revert: u.revertSettings,
			done: "the core runs with the new values of " + strings.Join(slices.Sorted(maps.Keys(o.Settings)), ", "),
		}
	}
	return orderKind{stage: u.stageVersion, backUp: u.backUp, apply: u.applyVersion, revert: u.revertVersion, restores: true}
}

// from is the version before an order; empty if it is not of a version.
func (u *Upgrader) from(o resource.UpgradeOrder) string {
	if o.Version == "" {
		return ""
	}
	return u.state.Version
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

// applyVersion has current lead to the new version, or has the order's own command install it.
func (u *Upgrader) applyVersion(ctx context.Context, up upgradeRecord) error {
	return u.switchTo(ctx, up, up.Order.Version)
}

// revertVersion has current lead to the version before, or has the order's own command install that.
func (u *Upgrader) revertVersion(ctx context.Context, up upgradeRecord) error {
	return u.switchTo(ctx, up, up.From)
}

func (u *Upgrader) switchTo(ctx context.Context, up upgradeRecord, version string) error {
	if len(up.Order.Command) > 0 {
		return toFailure(ctx, resource.UpgradeFailedCommand, u.o.Run(ctx, up.Order.Command, commandEnv(up, version)))
	}
	return u.versions.link(linkCurrent, version)
}

// Files beside that of the core's settings: those before the last change, and those that are checked.
const (
	beforeSuffix  = ".before"
	checkedSuffix = ".tried"
)

// checkTimeout is how long a core may take to check its settings.
const checkTimeout = time.Minute

// stageSettings refuses settings that the hub may not change, and has the present core check the others.
func (u *Upgrader) stageSettings(ctx context.Context, o resource.UpgradeOrder) (prepareResult, error) {
	return prepareResult{result: resultDone}, u.checkSettings(ctx, o)
}

func (u *Upgrader) checkSettings(ctx context.Context, o resource.UpgradeOrder) error {
	if err := u.managesCore(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		allows := func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok } // patterns were checked
		if !slices.ContainsFunc(u.o.Config.Settings, allows) {
			return failf(resource.UpgradeFailedRefused, "this node does not let the hub change %s: upgrade.settings of its agent.yaml is [%s]", name, strings.Join(u.o.Config.Settings, ", "))
		}
	}
	if err := u.ready(ctx, o); err != nil {
		return err
	}
	file, text, err := u.settings("")
	if err != nil {
		return failf(resource.UpgradeFailedRefused, "the core's file of settings: %v: see upgrade.core.config of agent.yaml", err)
	}
	if text, err = configs.MergeSettings(text, o.Settings); err != nil {
		return failf(resource.UpgradeFailedSettings, "%s: %v", file, err)
	}
	tried := file + checkedSuffix
	defer os.Remove(tried)
	if err := configs.WriteFileLike(tried, file, text); err != nil {
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	args := u.o.Config.Core.Run
	if len(args) == 0 { // the unit's
		args = []string{"--data-dir", u.o.Config.Core.Data}
	}
	args = slices.Concat(args, []string{"--config", tried, "--check-config"})
	return toFailure(ctx, resource.UpgradeFailedSettings, u.runCore(ctx, checkTimeout, ownerAttributes(u.o.Config.Core.Data), args))
}

// settings are the path of the core's file of settings, and the text of the file whose name has a suffix besides.
func (u *Upgrader) settings(suffix string) (file string, text []byte, err error) {
	if file, err = filepath.EvalSymlinks(u.o.Config.Core.Config); err != nil {
		return "", nil, err
	}
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return "", nil, errors.Join(err, fmt.Errorf("%s is no regular file", file))
	}
	text, err = os.ReadFile(file + suffix)
	return file, text, err
}

// keepSettings copies the core's file, which stays as the one before the last change.
func (u *Upgrader) keepSettings(context.Context) error {
	file, text, err := u.settings("")
	if err != nil {
		return err
	}
	return configs.WriteFileLike(file+beforeSuffix, file, text)
}

// applySettings makes the core's file of the one that was kept, and the new settings.
func (u *Upgrader) applySettings(_ context.Context, up upgradeRecord) error {
	file, text, err := u.settings(beforeSuffix)
	if err != nil {
		return err
	}
	if text, err = configs.MergeSettings(text, up.Order.Settings); err != nil {
		return err
	}
	return configs.WriteFileLike(file, file, text)
}

// hasSettings says whether the core's file is what applySettings has made of it.
func (u *Upgrader) hasSettings(settings map[string]string) bool {
	_, before, err := u.settings(beforeSuffix)
	if err != nil {
		return false
	}
	applied, err := configs.MergeSettings(before, settings)
	_, now, e := u.settings("")
	return err == nil && e == nil && bytes.Equal(applied, now)
}

// revertSettings makes the core's file the one that was kept.
func (u *Upgrader) revertSettings(context.Context, upgradeRecord) error {
	file, text, err := u.settings(beforeSuffix)
	if err != nil {
		return err
	}
	return configs.WriteFileLike(file, file, text)
}

// pullImages pulls images one after another. There is nothing to take back: what was pulled stays.
func (u *Upgrader) pullImages(ctx context.Context, o resource.UpgradeOrder) (p prepareResult, err error) {
	if u.o.Pull == nil {
		return p, failf(resource.UpgradeFailedPull, "this agent runs no containers, so it pulls no images")
	}
	if err := u.within(ctx, o); err != nil {
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
