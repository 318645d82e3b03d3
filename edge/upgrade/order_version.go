// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// versionOrders are orders of a version.
type versionOrders struct {
	*journal
	versions *installation
	core     *coreControl
	services services
	allows   func(argv []string) error
	run      func(ctx context.Context, argv, env []string) error
	kept     func() []string // versions that are not removed
}

// Files of a version besides its programs.
const (
	manifestName  = "manifest.json"
	signatureName = "manifest.json.minisig"
)

// backupName is the backup of the core's data that is made before an upgrade.
const backupName = "before.tar.gz"

// spareSpace is what is left free on a disk.
const spareSpace = 16 << 20

// stage verifies an order, and fetches and verifies its bundle. Nothing that runs is changed.
func (v *versionOrders) stage(ctx context.Context, o resource.UpgradeOrder) (p prepareResult, err error) {
	if err := v.core.checkManaged(); err != nil {
		return p, err
	}
	switch present := v.state.Version; {
	case present == o.Version && !v.versions.lacksAgent(o):
		return prepareResult{resultNothing, "the node runs this version already"}, nil
	case present == o.Version:
		if err := v.versions.verifyInstalled(present); err != nil {
			return p, failf(resource.UpgradeFailedArtifact, "version %s, which is installed: %v", present, err)
		}
		return prepareResult{result: resultAgentOnly}, nil
	case isOlder(o.Version, present) && !o.AllowDowngrade:
		return p, failf(resource.UpgradeFailedOlder, "version %s is older than %s, which runs, and the order does not allow a downgrade", o.Version, present)
	}
	for _, command := range [][]string{o.Installer, o.Command} {
		if len(command) > 0 {
			if err := v.allows(command); err != nil {
				return p, toFailure(ctx, resource.UpgradeFailedRefused, err)
			}
		}
	}
	if err := v.core.checkReady(ctx, o); err != nil {
		return p, err
	}
	if len(o.Command) == 0 {
		err = v.fetch(ctx, o)
	}
	if len(o.Installer) > 0 {
		return prepareResult{result: resultInstaller}, err
	}
	return prepareResult{result: resultDone}, err
}

// runInstaller runs the order's own installer.
func (u *Upgrader) runInstaller(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, up.Started.Add(time.Duration(up.Order.Timeout)*time.Second), errors.New("the time of the upgrade was over, and it was ended"))
	defer cancel()
	err := u.o.Run(ctx, up.Order.Installer, commandEnv(*up, up.Order.Version))
	if err != nil && !errors.As(err, new(*Failure)) {
		err = failf(resource.UpgradeFailedCommand, "%v", err)
	}
	return resultOf(err)
}

// commandEnv is what a command of the node learns of an upgrade. version is what it is to install: when it is rolled back, the one before.
func commandEnv(up upgradeRecord, version string) []string {
	return []string{"EDGEBUS_UPGRADE_FROM=" + up.From, "EDGEBUS_UPGRADE_TO=" + up.Order.Version, "EDGEBUS_UPGRADE_VERSION=" + version}
}

// fetch fetches the programs of a version for this host, unless they are there.
func (v *versionOrders) fetch(ctx context.Context, o resource.UpgradeOrder) error {
	v.progress(stepFetch, nil)
	v.hook(stepFetch)
	programs, newest, err := v.versions.programs([]byte(o.Manifest), o.Signature, o.Version)
	if err != nil {
		return err
	}
	if err := v.services.checkPrograms(ctx, programs); err != nil {
		return err
	}
	if has, err := askCore(ctx, v.core.config.Core.Data); err == nil && newest > 0 && has.StoreFormat > newest {
		return failf(resource.UpgradeFailedFormat, "version %s reads the format %d of the core's store at most, and this node's has the format %d", o.Version, newest, has.StoreFormat)
	}
	return v.versions.fetch(ctx, o, programs, v.kept())
}

// apply has current lead to the new version, or has the order's own command install it.
func (v *versionOrders) apply(ctx context.Context, up upgradeRecord) error {
	return v.switchTo(ctx, up, up.Order.Version)
}

// revert has current lead to the version before, or has the order's own command install that.
func (v *versionOrders) revert(ctx context.Context, up upgradeRecord) error {
	return v.switchTo(ctx, up, up.From)
}

func (v *versionOrders) switchTo(ctx context.Context, up upgradeRecord, version string) error {
	if len(up.Order.Command) > 0 {
		return toFailure(ctx, resource.UpgradeFailedCommand, v.run(ctx, up.Order.Command, commandEnv(up, version)))
	}
	return v.versions.link(linkCurrent, version)
}
