// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/subprocess"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// coreControl is the core of this node, as far as an upgrade has to do with it.
type coreControl struct {
	core // nil: this agent can't replace or restart it
	*journal
	config    *configs.AgentUpgrade
	versions  versionDir
	exceeded  func(ctx context.Context, checks resource.UpgradeChecks) error
	connected func() error
}

// askTimeout is how long a core may take to tell its state.
const askTimeout = 2 * time.Second

// coreState is what a core tells of itself.
type coreState struct {
	resource.LinkReport
	// StoreFormat is the format of its store.
	StoreFormat int `json:"storeFormat"`
}

// askCore asks a core for its state, at the socket in its data directory.
func askCore(ctx context.Context, dataDir string) (r coreState, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dataDir, backup.SocketName))
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, backup.StateURL, nil)
	if err != nil {
		return r, err
	}
	res, err := client.Do(req)
	if err != nil {
		return r, fmt.Errorf("it does not answer: %w", errors.Unwrap(err))
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	switch {
	case err != nil:
		return r, fmt.Errorf("it does not answer: %w", err)
	case res.StatusCode != http.StatusOK:
		return r, fmt.Errorf("it is not ready: %s", strings.TrimSpace(string(text)))
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("its state can't be read: %w", err)
	}
	return r, nil
}

// checkSound says what is wrong with a core itself, by its state.
func checkSound(r coreState) error {
	for _, bad := range []map[string]string{r.DamagedStores, r.FailingStores} {
		for _, store := range slices.Sorted(maps.Keys(bad)) {
			return fmt.Errorf("its store %s fails: %s", store, bad[store])
		}
	}
	if r.MissingData != "" {
		return errors.New(r.MissingData)
	}
	return nil
}

// checkHeard says why the hub has not heard a core, by its state: the hub has confirmed all that the core had to tell, or all that is older than within.
// A core that works alone need not be heard.
func checkHeard(r coreState, within time.Duration) error {
	if len(r.Links) == 0 {
		return errors.New("it does not say how its link is")
	}
	l := r.Links[0]
	switch {
	case l.State == resource.LinkAlone, l.State == resource.Online && l.InStep:
		return nil
	case l.State != resource.Online && l.LastError != "":
		return fmt.Errorf("it has no connection to the hub: %s", l.LastError)
	case l.State != resource.Online:
		return errors.New("it has no connection to the hub")
	case l.Behind != nil && l.Behind.Keys > 0 && l.Behind.Seconds <= within.Seconds():
		return nil // somebody writes without a pause
	}
	return errors.New("the hub has not confirmed that it has everything of this node")
}

// observe observes the core on trial until it was well for upgrade.trial.watch, and returns why it failed: at once if it ends, and else after a
// limit.
func (c *coreControl) observe(ctx context.Context, up upgradeRecord, limit time.Duration) error {
	core, version := up.newName(), cmp.Or(up.Order.Version, c.state.Version)
	over := time.Now().Add(limit)
	var well time.Time // since when
	first := 0
	for {
		pid, why := c.process(ctx)
		switch {
		case pid == 0:
			return failf(resource.UpgradeFailedExited, "%s does not run: %s", core, why)
		case first != 0 && pid != first:
			return failf(resource.UpgradeFailedExited, "%s ended by itself and was started again", core)
		}
		first = pid
		if used, most := residentMemory(pid), int64(c.config.Trial.Memory); used > most {
			return failf(resource.UpgradeFailedMemory, "%s uses %d bytes of memory; %d are allowed on trial (upgrade.trial.memory)", core, used, most)
		}
		reason, err := c.checkWell(ctx, version)
		if errors.As(err, new(*Failure)) {
			return err
		}
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			well = time.Time{}
		case well.IsZero():
			well = now
		case now.Sub(well) >= c.config.Trial.Watch:
			return nil
		}
		c.progress(stepTrial, err)
		if now.After(over) {
			if err == nil {
				return failf(resource.UpgradeFailedConnection, "%s was not well for %s without a break within %s", core, c.config.Trial.Watch, limit)
			}
			return failf(reason, "%s, after %s: %v", core, limit, err)
		}
		if !backoff.Sleep(ctx, min(250*time.Millisecond, c.config.Trial.Watch/4)) {
			return ctx.Err()
		}
	}
}

// checkWell says why the core on trial is not well, and the reason that this is if it stays so.
func (c *coreControl) checkWell(ctx context.Context, version string) (reason string, err error) {
	r, err := askCore(ctx, c.config.Core.Data)
	if err != nil {
		return resource.UpgradeFailedHang, err
	}
	if r.Version != version {
		return "", failf(resource.UpgradeFailedArtifact, "the program of version %s says that it is version %s", version, r.Version)
	}
	if err := checkSound(r); err != nil {
		return resource.UpgradeFailedStore, err
	}
	if err := checkHeard(r, c.config.Trial.Watch); err != nil {
		return resource.UpgradeFailedConnection, err
	}
	return resource.UpgradeFailedConnection, c.connected()
}

// awaitRunning waits until the version before runs again, after a roll-back. The hub need not hear it: it may be away.
func (c *coreControl) awaitRunning(ctx context.Context) error {
	over := time.Now().Add(c.config.Trial.Timeout)
	for {
		pid, why := c.process(ctx)
		if pid == 0 {
			return fmt.Errorf("it does not run: %s", why)
		}
		r, err := askCore(ctx, c.config.Core.Data)
		if err == nil {
			err = checkSound(r)
		}
		if err == nil {
			return nil
		}
		if time.Now().After(over) {
			return err
		}
		if !backoff.Sleep(ctx, min(100*time.Millisecond, c.config.Trial.Watch/4)) {
			return ctx.Err()
		}
	}
}

// checkManaged says why the agent can't replace or restart the core of this node.
func (c *coreControl) checkManaged() error {
	switch {
	case c.core == nil:
		return failf(resource.UpgradeFailedRefused, "root is not /, and upgrade.core.run does not say how the agent is to run the core: it upgrades nothing")
	case c.state.Version == "":
		return failf(resource.UpgradeFailedRefused, "the core of this node is not below %s: install it with scripts/install.sh", c.config.Dir)
	}
	return nil
}

// notReadyError is why an upgrade can't begin yet.
type notReadyError struct{ error }

// checkReady says what does not hold yet before an upgrade: the core is well, the hub hears it, and the host has the resources that the order asks for.
func (c *coreControl) checkReady(ctx context.Context, o resource.UpgradeOrder) error {
	if pid, why := c.process(ctx); pid == 0 {
		return notReadyError{fmt.Errorf("the present core does not run: %s", why)}
	}
	r, err := askCore(ctx, c.config.Core.Data)
	if err == nil {
		err = errors.Join(checkSound(r), checkHeard(r, c.config.Trial.Watch))
	}
	if err != nil {
		return notReadyError{fmt.Errorf("the present core is not well: %w", err)}
	}
	return c.checkUsage(ctx, o)
}

// checkUsage says which of the host's resources is used more than an order allows.
func (c *coreControl) checkUsage(ctx context.Context, o resource.UpgradeOrder) error {
	if o.Checks == nil {
		return nil
	}
	if err := c.exceeded(ctx, *o.Checks); err != nil {
		return notReadyError{err}
	}
	return nil
}

// restart starts the core that current leads to, with the settings in its file. One that does not get ready is an error, and the upgrade's: ctx goes on.
func (c *coreControl) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.Trial.Timeout+c.config.Core.Stop)
	defer cancel()
	return c.core.restart(ctx, true)
}

// withOutput adds the end of the core's output to a Failure.
func (c *coreControl) withOutput(ctx context.Context, err error) error {
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}
	if out := c.output(ctx); out != "" {
		return &Failure{f.Reason, f.Message, out}
	}
	return f
}

// runsVersionOf says whether the core that runs is of the version on trial. Whether one has the new settings can't be known.
func (c *coreControl) runsVersionOf(ctx context.Context, up upgradeRecord) bool {
	if pid, _ := c.process(ctx); pid == 0 || up.Order.Version == "" {
		return false
	}
	r, err := askCore(ctx, c.config.Core.Data)
	return err == nil && r.Version == up.Order.Version
}

// missesHub says why the core is without its hub, though that could be reached. It is not known while nothing can be said for or against the core: nobody
// has it run, or the hub can't be reached from this host either.
func (c *coreControl) missesHub(ctx context.Context, p *probationRecord) (known bool, missed error) {
	if pid, _ := c.process(ctx); pid == 0 {
		return false, nil
	}
	r, err := askCore(ctx, c.config.Core.Data)
	if len(r.Links) > 0 {
		p.Hub = cmp.Or(r.Links[0].Peer, p.Hub)
	}
	if err != nil {
		return true, err
	}
	if err := checkHeard(r, c.config.Probation.Away); err != nil {
		return isReachable(ctx, p.Hub), err
	}
	return true, nil
}

// startTimeout is how long a core may take to start, or to stop, while a backup is asked of it.
const startTimeout = 20 * time.Second

// backUp makes a backup of the core's data, by the core that runs.
func (c *coreControl) backUp(ctx context.Context) error {
	if _, err := os.Stat(c.config.Core.Data); err != nil {
		return err
	}
	over := time.Now().Add(startTimeout)
	for {
		err := c.maintain(ctx, "backup", c.file(backupName), "--force")
		if err == nil || isDiskError(err) || time.Now().After(over) || !backoff.Sleep(ctx, 500*time.Millisecond) {
			return err
		}
	}
}

// maintain has the committed core's program work on the data directory, as its owner.
func (c *coreControl) maintain(ctx context.Context, args ...string) error {
	return c.runCore(ctx, 10*time.Minute, nil, append(args, "--data-dir", c.config.Core.Data))
}

// runCore runs the committed core's program once, with arguments, and returns an error with the end of its output if it fails.
func (c *coreControl) runCore(ctx context.Context, limit time.Duration, as *syscall.SysProcAttr, args []string) error {
	command := subprocess.Command{
		Argv: append([]string{filepath.Join(c.versions.path(c.state.Version), programCore)}, args...), Time: limit,
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "TMPDIR=" + os.TempDir()},
	}
	if as != nil {
		command.As = as.Credential
	}
	if _, err := command.Run(ctx); err != nil {
		return fmt.Errorf("edgecore %s: %w", args[0], err)
	}
	return nil
}

// restore puts the backup back if the core before can't open its data, and starts it again.
func (c *coreControl) restore(ctx context.Context, up *upgradeRecord) error {
	why := errors.New(up.RestartError)
	if err := c.stop(ctx); err != nil {
		return errors.Join(why, err)
	}
	damage := c.maintain(ctx, "check")
	var exit *exec.ExitError
	if !errors.As(damage, &exit) || exit.ExitCode() != 1 { // its data is not the reason, or nobody knows
		return errors.Join(why, c.restart(ctx))
	}
	c.log.Error().Err(damage).Msg("THE CORE'S DATA CAN'T BE OPENED ANY MORE AND IS PUT BACK FROM THE BACKUP BEFORE THE UPGRADE: what was written since is moved aside")
	if err := c.maintain(ctx, "restore", c.file(backupName), "--force"); err != nil {
		return errors.Join(why, damage, err, c.restart(ctx))
	}
	up.Failed = &Failure{up.Failed.Reason, fmt.Sprintf("%s; the core's data could not be opened any more (%v) and was put back from the backup of %s: what was written since is moved aside",
		up.Failed.Message, damage, up.Started.UTC().Format(time.RFC3339)), up.Failed.Log}
	if err := c.restart(ctx); err != nil {
		return err
	}
	return c.awaitRunning(ctx)
}
