// SPDX-License-Identifier: Apache-2.0

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

// settingsOrders are orders of settings of the core.
type settingsOrders struct {
	*journal
	core *coreControl
}

// Files beside that of the core's settings: those before the last change, and those that are checked.
const (
	beforeSuffix  = ".before"
	checkedSuffix = ".tried"
)

// checkTimeout is how long a core may take to check its settings.
const checkTimeout = time.Minute

// prepare refuses settings that the hub may not change, and has the present core check the others.
func (s *settingsOrders) prepare(ctx context.Context, o resource.UpgradeOrder) (prepareResult, error) {
	return prepareResult{result: resultDone}, s.check(ctx, o)
}

func (s *settingsOrders) check(ctx context.Context, o resource.UpgradeOrder) error {
	if err := s.core.checkManaged(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		allows := func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok } // patterns were checked
		if !slices.ContainsFunc(s.core.config.Settings, allows) {
			return failf(resource.UpgradeFailedRefused, "this node does not let the hub change %s: upgrade.settings of its agent.yaml is [%s]", name, strings.Join(s.core.config.Settings, ", "))
		}
	}
	if err := s.core.checkReady(ctx, o); err != nil {
		return err
	}
	file, text, err := s.read("")
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
	args := s.core.config.Core.Run
	if len(args) == 0 { // the unit's
		args = []string{"--data-dir", s.core.config.Core.Data}
	}
	args = slices.Concat(args, []string{"--config", tried, "--check-config"})
	return toFailure(ctx, resource.UpgradeFailedSettings, s.core.runCore(ctx, checkTimeout, ownerAttributes(s.core.config.Core.Data), args))
}

// read are the path of the core's file of settings, and the text of the file whose name has a suffix besides.
func (s *settingsOrders) read(suffix string) (file string, text []byte, err error) {
	if file, err = filepath.EvalSymlinks(s.core.config.Core.Config); err != nil {
		return "", nil, err
	}
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return "", nil, errors.Join(err, fmt.Errorf("%s is no regular file", file))
	}
	text, err = os.ReadFile(file + suffix)
	return file, text, err
}

// backUp copies the core's file, which stays as the one before the last change.
func (s *settingsOrders) backUp(context.Context) error {
	file, text, err := s.read("")
	if err != nil {
		return err
	}
	return configs.WriteFileLike(file+beforeSuffix, file, text)
}

// apply makes the core's file of the one that was kept, and the new settings.
func (s *settingsOrders) apply(_ context.Context, up upgradeRecord) error {
	file, text, err := s.read(beforeSuffix)
	if err != nil {
		return err
	}
	if text, err = configs.MergeSettings(text, up.Order.Settings); err != nil {
		return err
	}
	return configs.WriteFileLike(file, file, text)
}

// applied says whether the core's file is what apply has made of it.
func (s *settingsOrders) applied(settings map[string]string) bool {
	_, before, err := s.read(beforeSuffix)
	if err != nil {
		return false
	}
	applied, err := configs.MergeSettings(before, settings)
	_, now, e := s.read("")
	return err == nil && e == nil && bytes.Equal(applied, now)
}

// revert makes the core's file the one that was kept.
func (s *settingsOrders) revert(context.Context, upgradeRecord) error {
	file, text, err := s.read(beforeSuffix)
	if err != nil {
		return err
	}
	return configs.WriteFileLike(file, file, text)
}
