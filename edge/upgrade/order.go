package upgrade

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// programs verifies a manifest, and returns the programs of a version for this host, and the newest format of the store that it reads; 0: it
// isn't said.
func (u *Upgrader) programs(manifest []byte, signature, version string) (list []resource.ArtifactProgram, newest int, err error) {
	if err := u.keys.verify(manifest, signature); err != nil {
		return nil, 0, failf(resource.UpgradeFailedSignature, "the manifest of version %s: %v", version, err)
	}
	m, err := resource.ParseManifest(manifest)
	if err != nil {
		return nil, 0, failf(resource.UpgradeFailedArtifact, "version %s: %v", version, err)
	}
	if m.Version != version {
		return nil, 0, failf(resource.UpgradeFailedSignature, "the manifest that is signed is of version %s, and not %s", m.Version, version)
	}
	for _, p := range m.Of(runtime.GOARCH) {
		if p.Name == programCore {
			return m.Of(runtime.GOARCH), m.StoreFormat, nil
		}
	}
	return nil, 0, failf(resource.UpgradeFailedArchitecture, "version %s has no %s for %s", version, programCore, runtime.GOARCH)
}

// verifyFile compares a program that is in place with the manifest.
func verifyFile(path string, a resource.ArtifactProgram) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkContent(a.Name, f, nil, a.Size, a.Digest)
}

// isDiskFull says whether an error is of a disk without room.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isDiskError says whether an error is of the disk and not of a connection.
func isDiskError(err error) bool {
	return isDiskFull(err) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) || errors.Is(err, os.ErrPermission)
}

// inTime fails when an order has taken too long since it was begun.
func (u *Upgrader) inTime(o resource.UpgradeOrder, begun time.Time) error {
	if limit := time.Duration(o.Timeout) * time.Second; u.o.Now().Sub(begun) > limit {
		return failf(resource.UpgradeFailedTimeout, "it took longer than %s, at last %s: %s", limit, u.live.step, cmp.Or(u.live.waitReason, u.live.lastWaitReason, "no cause is known"))
	}
	return nil
}

// Names of the files by which the owner of a node holds and releases upgrades.
const (
	holdName    = "hold"
	releaseName = "released"
)

// held is why the node's owner wants no upgrade now, or not this one; empty: nothing speaks against it.
func (u *Upgrader) held(o resource.UpgradeOrder) string {
	if why := u.holds(); why != "" {
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

// holds is why the node's owner wants no upgrade at all now.
func (u *Upgrader) holds() string {
	why, err := os.ReadFile(u.file(holdName))
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

// reportName is a copy of the report for commands of this host.
const reportName = "report.json"

// LastReport is the last report of an agent, for people of this host.
func LastReport(dataDir string) (r resource.UpgradeReport, err error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "upgrade", reportName))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// received notes how far a download is.
func (u *Upgrader) received(bytes, size int64) {
	u.mu.Lock()
	u.live.received, u.live.size = bytes, size
	u.mu.Unlock()
	u.o.Changed()
}

// maxText bounds messages and logs in a report.
const maxText = 4 << 10

func truncateText(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Report is what there is to tell the hub.
func (u *Upgrader) Report() resource.UpgradeReport {
	u.mu.Lock()
	s, seen := u.state, u.live
	u.mu.Unlock()
	r := resource.UpgradeReport{Version: s.Version, Agent: u.o.Version, Held: u.holds()}
	up, done := s.Upgrade, s.LastOutcome
	switch {
	case up != nil:
		r.Order, r.From, r.To, r.Step, r.Message = up.Order.ID, up.From, up.Order.Version, stepTable[up.Step].report, seen.waitReason
		if up.Failed != nil {
			r.Reason, r.Message, r.Log = up.Failed.Reason, strings.TrimSuffix(up.Failed.Message+"; "+seen.waitReason, "; "), up.Failed.Log
		}
	case seen.step != "":
		r.Order, r.Wait, r.From, r.To, r.Step, r.Message = seen.order, seen.held, seen.from, seen.to, seen.step, seen.waitReason
		r.Received, r.Size = seen.received, seen.size
	case done != nil:
		r.Order, r.From, r.To, r.Result, r.Reason, r.Message, r.Log = done.Order, done.From, done.To, done.Result, done.Reason, done.Message, done.Log
		r.At = resource.FormatTime(done.At)
	}
	if r.Step != "" && !seen.at.IsZero() {
		r.At = resource.FormatTime(seen.at)
	}
	if seen.versionDamage != "" {
		r.Message = strings.TrimPrefix(r.Message+"; "+seen.versionDamage, "; ")
	}
	if r.Result == "" && r.Step == "" && seen.waitReason != "" {
		r.Message = strings.TrimPrefix(r.Message+"; "+seen.waitReason, "; ")
	}
	r.Message, r.Log = truncateText(r.Message, maxText), truncateText(r.Log, maxText)
	return r
}

// Note keeps a copy of a report for commands of this host.
func (u *Upgrader) Note(r resource.UpgradeReport) {
	if text, err := json.Marshal(r); err == nil {
		_ = os.WriteFile(u.file(reportName+".new"), text, 0o600) // the next one may succeed
		_ = os.Rename(u.file(reportName+".new"), u.file(reportName))
	}
}
