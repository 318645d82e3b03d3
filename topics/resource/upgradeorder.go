// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/json"
	"strings"
)

// UpgradeOrder is the payload of the topic upgrade: the hub's order to a node. The agent carries it out once, and sends
// UpgradeReports. An order that is deleted, or replaced by one with another ID, is abandoned if nothing was changed for it
// yet.
type UpgradeOrder struct {
	// ID identifies the order. An order whose ID is that of one which the node has carried out, successfully or not, is not
	// carried out again.
	ID string `json:"id"`
	// Upgrade is the name of the Upgrade, for people.
	Upgrade string `json:"upgrade"`
	// Version is the desired version, which must be that of the manifest. Exactly one of Version, Settings and Images is set.
	Version string `json:"version,omitempty"`
	// Settings are settings of the core: values in YAML by name, with dots. The core validates them first. They are undone if
	// the core does not reach the hub with them.
	Settings map[string]string `json:"settings,omitempty"`
	// Images are container images to pull.
	Images []string `json:"images,omitempty"`
	// Wait says that the node may not begin yet. The node reports StepHeld until its owner has released the upgrade, and
	// StepReady from then on. When it may begin, the order is sent again with the same ID and without Wait. The hub also sets
	// Wait when a node reports StepHeld, so that other nodes can begin meanwhile.
	Wait bool `json:"wait,omitempty"`
	// Confirm says that the node's owner must release the upgrade even if the node's settings do not require it.
	Confirm bool `json:"confirm,omitempty"`
	// Manifest is the JSON text of a Manifest, and Signature its signature by minisign. Both are empty if Command is set and
	// there is no Artifact.
	Manifest  string `json:"manifest,omitempty"`
	Signature string `json:"signature,omitempty"`
	// Source is the address of the programs, if it is not the hub: see ArtifactSpec.
	Source string `json:"source,omitempty"`
	// Installer and Command are the argument vectors of upgradeInstaller and upgradeCmd. The node's settings must allow them.
	Installer []string `json:"installer,omitempty"`
	Command   []string `json:"command,omitempty"`
	// AllowDowngrade permits an older version than the node's.
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
	// Checks are limits that the host must be within before anything is changed. The node reports StepWaiting until it is.
	Checks *UpgradeChecks `json:"checks,omitempty"`
	// Timeout is the time in seconds, at least 1, from when the node begins until the new version must be committed. If it runs
	// out, the node rolls back.
	Timeout int64 `json:"timeout"`
	// Begun is the time when the hub had the node begin; empty while the node waits. When it changes, the node has all the time of
	// Timeout again.
	Begun string `json:"begun,omitempty"`
	// SwitchBefore is the time when the window closes. Nothing is changed after it, and the order fails with
	// UpgradeFailedWindow. Empty: no limit.
	SwitchBefore string `json:"switchBefore,omitempty"`
}

// UpgradeReport is the payload of the topic upgrade/status: the versions on a node, and the progress of its present or last
// order.
type UpgradeReport struct {
	// Version is the committed version of the core, and Agent the version of the agent.
	Version string `json:"version,omitempty"`
	Agent   string `json:"agent,omitempty"`
	// Held is why the node's owner refuses upgrades at present; empty if he does not. The hub does not let such a node begin.
	Held string `json:"held,omitempty"`
	// Order is the ID of the order that the following fields describe; empty if the node has had none.
	Order string `json:"order,omitempty"`
	// Wait repeats the order's. If it is set, the node has not begun and does not begin.
	Wait bool `json:"wait,omitempty"`
	// From and To are the versions before and after the upgrade.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Step is what the node is doing; empty if there is a Result.
	Step string `json:"step,omitempty"`
	// Received is how many of Size bytes have been downloaded, in StepDownloading.
	Received int64 `json:"received,omitempty"`
	Size     int64 `json:"size,omitempty"`
	// Result is the result of the order: UpgradeSuccess, UpgradeRolledBack (also if nothing was changed) or
	// UpgradeRollbackFailed.
	Result string `json:"result,omitempty"`
	// Reason is why the order failed: one of UpgradeFailed…. Message explains a failure, or what the node waits for, to people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Log is the end of the new version's output.
	Log string `json:"log,omitempty"`
	// At is the time when the step began, or the order ended, by the node's clock.
	At string `json:"at,omitempty"`
}

// The kinds of the hub's records of the nodes' present orders and last reports, by the nodes' names. The API does not have them.
const (
	KindUpgradeOrder  = "UpgradeOrder"
	KindUpgradeReport = "UpgradeReport"
)

// The steps of an upgrade on a node. Nothing is changed before StepInstalling.
const (
	StepHeld        = "Held"           // the node's owner has not released the upgrade
	StepReady       = "Ready"          // the node waits for the hub's permission to begin: see UpgradeOrder.Wait
	StepWaiting     = "Waiting"        // the node waits for the core, the link, a content or resources: the message says which
	StepDownloading = "Downloading"    // the programs are downloaded and verified
	StepInstalling  = "Installing"     // the order's installer is run
	StepBackingUp   = "BackingUp"      // a backup of the core's data is made
	StepPulling     = "Pulling"        // images are pulled
	StepSwitching   = "Switching"      // the new version or the new settings become the current ones
	StepTrial       = "Trial"          // the new core runs and is observed
	StepAgent       = "ReplacingAgent" // the new agent takes the place of the old one
	StepRollingBack = "RollingBack"    // the version before becomes the current one again, and is started
)

// The reasons for which an upgrade fails on a node.
const (
	UpgradeFailedRefused      = "Refused"           // the node's settings don't allow the order, or it can't be read
	UpgradeFailedSignature    = "BadSignature"      // the manifest is not signed by a key that the node trusts
	UpgradeFailedArtifact     = "BadArtifact"       // a program is not what the manifest says, no program, or not whole
	UpgradeFailedArchitecture = "WrongArchitecture" // there is no program for the host
	UpgradeFailedOlder        = "OlderVersion"      // the node has a newer version, and the order doesn't allow a downgrade
	UpgradeFailedFormat       = "NewerStore"        // the version can't read the format of the node's store
	UpgradeFailedDisk         = "NoSpace"
	UpgradeFailedBackup       = "BackupFailed"
	UpgradeFailedCommand      = "CommandFailed" // upgradeInstaller or upgradeCmd failed
	UpgradeFailedSettings     = "BadSettings"   // the core refuses the settings
	UpgradeFailedPull         = "PullFailed"    // an image can't be pulled
	UpgradeFailedSwitch       = "SwitchFailed"
	UpgradeFailedStart        = "DoesNotStart"
	UpgradeFailedExited       = "Exited" // it ended during the trial, once or repeatedly
	UpgradeFailedHang         = "Hangs"
	UpgradeFailedStore        = "StoreFailed"   // it can't open or write the store
	UpgradeFailedConnection   = "NoConnection"  // it does not reach the hub, or loses the connection
	UpgradeFailedMemory       = "TooMuchMemory" // it uses more than the node's settings allow during the trial
	UpgradeFailedInterrupted  = "Interrupted"   // the agent ended too often during the upgrade
	UpgradeFailedTimeout      = "Timeout"       // it was not finished in time
	UpgradeFailedWindow       = "WindowClosed"
	UpgradeFailedAgent        = "AgentFailed" // beside UpgradeSuccess: the core is upgraded, and the agent is not
)

// MaxUpgradeReport is the largest UpgradeReport, in bytes.
const MaxUpgradeReport = 16 << 10

// ParseUpgradeOrder reads the payload of the topic upgrade. Unknown fields are refused: a newer hub has set them, and the node
// would not do what was ordered.
func ParseUpgradeOrder(payload []byte) (o UpgradeOrder, err error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, Errorf(Invalid, "upgrade", "is no order that this version understands: %v", err)
	}
	var p causeList
	checkRequired(&p, "upgrade.id", o.ID)
	checkVersion(&p, "upgrade.version", o.Version)
	checkSettings(&p, "upgrade.settings", o.Settings)
	checkImages(&p, "upgrade.images", o.Images)
	switch s := (UpgradeSpec{Version: o.Version, Settings: o.Settings, Images: o.Images}); {
	case len(s.actions()) != 1:
		p.add("upgrade.version", "exactly one of version, settings and images is needed")
	case o.Manifest != "":
		switch b, err := ParseManifest([]byte(o.Manifest)); {
		case err != nil:
			p.addErr("upgrade.manifest", err)
		case b.Version != o.Version:
			p.add("upgrade.manifest", "is of version %s, and %s is ordered", b.Version, o.Version)
		}
	case o.Version != "" && len(o.Command) == 0:
		p.add("upgrade.manifest", "is required, unless there is a command")
	}
	checkCommand(&p, "upgrade.installer", strings.Join(o.Installer, " "))
	checkCommand(&p, "upgrade.command", strings.Join(o.Command, " "))
	if o.Timeout < 1 {
		p.add("upgrade.timeout", "%d: must be at least 1 s", o.Timeout)
	}
	return o, p.err()
}

// ParseUpgradeReport reads the payload of the topic upgrade/status. Unknown fields are ignored: a newer agent has set them.
func ParseUpgradeReport(payload []byte) (r UpgradeReport, err error) {
	if len(payload) > MaxUpgradeReport {
		return r, Errorf(TooLarge, "upgrade/status", "%d bytes; a report is at most %d", len(payload), MaxUpgradeReport)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "upgrade/status", `the payload must be JSON such as {"version":"v1.2.0","order":"…","step":"Trial"}: %v`, err)
	}
	var p causeList
	checkOneOf(&p, "upgrade/status.result", r.Result, []string{"", UpgradeSuccess, UpgradeRolledBack, UpgradeRollbackFailed})
	checkOneOf(&p, "upgrade/status.step", r.Step, []string{
		"", StepHeld, StepReady, StepWaiting, StepDownloading, StepInstalling, StepPulling, StepBackingUp, StepSwitching, StepTrial, StepAgent, StepRollingBack,
	})
	return r, p.err()
}
