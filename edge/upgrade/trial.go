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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/topics/resource"
)

// errNoState is of a core that is too old to tell its state.
var errNoState = errors.New("this version does not tell its state")

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
	case res.StatusCode == http.StatusNotFound:
		return r, errNoState
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
	for _, bad := range []map[string]string{r.Damaged, r.Failing} {
		for _, store := range slices.Sorted(maps.Keys(bad)) {
			return fmt.Errorf("its store %s fails: %s", store, bad[store])
		}
	}
	if r.Gone != "" {
		return errors.New(r.Gone)
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

// try observes the core on trial until it was well for upgrade.trial.watch, and returns why it failed: at once if it ends, and else after a
// limit.
func (u *Upgrader) try(ctx context.Context, up upgradeRecord, limit time.Duration) error {
	core, version := up.newName(), cmp.Or(up.Order.Version, u.state.Version)
	over := time.Now().Add(limit)
	var well time.Time // since when
	first := 0
	for {
		pid, why := u.core.process(ctx)
		switch {
		case pid == 0:
			return failf(resource.UpgradeFailedExited, "%s does not run: %s", core, why)
		case first != 0 && pid != first:
			return failf(resource.UpgradeFailedExited, "%s ended by itself and was started again", core)
		}
		first = pid
		if used, most := residentMemory(pid), int64(u.o.Config.Trial.Memory); used > most {
			return failf(resource.UpgradeFailedMemory, "%s uses %d bytes of memory; %d are allowed on trial (upgrade.trial.memory)", core, used, most)
		}
		reason, err := u.well(ctx, version)
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
		case now.Sub(well) >= u.o.Config.Trial.Watch:
			return nil
		}
		u.progress(stepTrial, err)
		if now.After(over) {
			if err == nil {
				return failf(resource.UpgradeFailedConnection, "%s was not well for %s without a break within %s", core, u.o.Config.Trial.Watch, limit)
			}
			return failf(reason, "%s, after %s: %v", core, limit, err)
		}
		if !sleep(ctx, min(250*time.Millisecond, u.o.Config.Trial.Watch/4)) {
			return ctx.Err()
		}
	}
}

// well says why the core on trial is not well, and the reason that this is if it stays so.
func (u *Upgrader) well(ctx context.Context, version string) (reason string, err error) {
	r, err := askCore(ctx, u.o.Config.Core.Data)
	if errors.Is(err, errNoState) { // a downgrade
		return resource.UpgradeFailedConnection, u.o.Connected()
	}
	if err != nil {
		return resource.UpgradeFailedHang, err
	}
	if r.Version != version {
		return "", failf(resource.UpgradeFailedArtifact, "the program of version %s says that it is version %s", version, r.Version)
	}
	if err := checkSound(r); err != nil {
		return resource.UpgradeFailedStore, err
	}
	if err := checkHeard(r, u.o.Config.Trial.Watch); err != nil {
		return resource.UpgradeFailedConnection, err
	}
	return resource.UpgradeFailedConnection, u.o.Connected()
}

// revived waits until the version before runs again, after a roll-back. The hub need not hear it: it may be away.
func (u *Upgrader) revived(ctx context.Context) error {
	over := time.Now().Add(u.o.Config.Trial.Timeout)
	for {
		pid, why := u.core.process(ctx)
		if pid == 0 {
			return fmt.Errorf("it does not run: %s", why)
		}
		r, err := askCore(ctx, u.o.Config.Core.Data)
		if err == nil {
			err = checkSound(r)
		}
		if err == nil || errors.Is(err, errNoState) {
			return nil
		}
		if time.Now().After(over) {
			return err
		}
		if !sleep(ctx, min(100*time.Millisecond, u.o.Config.Trial.Watch/4)) {
			return ctx.Err()
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
