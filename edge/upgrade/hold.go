// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// Names of the files by which the owner of a node holds and releases upgrades.
const (
	holdName    = "hold"
	releaseName = "released"
)

// held is why the node's owner wants no upgrade now, or not this one; empty: nothing speaks against it.
func (u *Upgrader) held(o resource.UpgradeOrder) string {
	if why := heldByOwner(u.o.Dir); why != "" {
		return why
	}
	if !u.o.Config.Hold && !o.Confirm {
		return ""
	}
	released, err := os.ReadFile(u.file(releaseName))
	if err == nil && strings.TrimSpace(string(released)) == o.ID {
		return ""
	}
	return "the owner of the node has to release it there: edgeagent upgrade release"
}

// heldByOwner is why the node's owner wants no upgrade at all now.
func heldByOwner(dataDir string) string {
	why, err := os.ReadFile(filepath.Join(dataDir, "upgrade", holdName))
	if err != nil {
		return ""
	}
	if text := strings.TrimSpace(string(why)); text != "" {
		return "held by the owner of the node: " + text
	}
	return "held by the owner of the node"
}

// HoldUpgrades has no upgrade begin on this node until Release. One that has begun to change something goes on.
func HoldUpgrades(dataDir, why string) error {
	if err := datadir.MakeDir(filepath.Join(dataDir, "upgrade")); err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(dataDir, "upgrade", holdName), []byte(why+"\n"))
}

// ReleaseUpgrade ends Hold, and lets the upgrade begin that waits for the node's owner. It returns the version of that, or else its order; empty: none waits.
func ReleaseUpgrade(dataDir string) (what string, err error) {
	dir := filepath.Join(dataDir, "upgrade")
	if err := os.Remove(filepath.Join(dir, holdName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, reportName))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	var w resource.UpgradeReport
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	if err != nil || w.Step != stepHeld {
		return "", err
	}
	if what = "version " + w.To; w.To == "" {
		what = "order " + w.Order
	}
	return what, datadir.WriteFile(filepath.Join(dir, releaseName), []byte(w.Order))
}
