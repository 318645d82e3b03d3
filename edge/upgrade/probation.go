// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// probationRecord is that of what an upgrade has committed: what was before is kept for some time, and is put back if the core loses the hub meanwhile.
type probationRecord struct {
	// Upgrade is the record of the upgrade, in stepProbation.
	Upgrade upgradeRecord `json:"upgrade"`
	// Remaining is how much longer it lasts: time in which the agent runs, and the hub is heard or could be.
	Remaining time.Duration `json:"remaining"`
	// HubMissed is how long the hub has been missed by now, though it could be reached.
	HubMissed time.Duration `json:"hubMissed,omitempty"`
	// Hub is its address, as the core has said.
	Hub string `json:"hub,omitempty"`
}

// probationWatch looks at the core on probation.
type probationWatch struct {
	*journal
	config   configs.AgentProbation
	core     *coreControl
	settings *settingsOrders
	over     func(upgradeRecord) // removes what was kept
	looked   time.Time           // when it looked last; zero: it is to begin
}

// Times of a probation: between two looks at the core, and after which what was counted is written.
const (
	probeInterval = 10 * time.Second
	countInterval = time.Minute
)

// interval is the time between two looks at the core on probation.
func (w *probationWatch) interval() time.Duration {
	return max(10*time.Millisecond, min(probeInterval, w.config.Away/5))
}

// begin makes the probation of an upgrade that has succeeded; nil: it has changed nothing of the core, or the node's settings want none.
func (w *probationWatch) begin(up upgradeRecord) *probationRecord {
	if w.config.Time == 0 || up.Order.Version != "" && up.Order.Version == up.From {
		return nil
	}
	up.Step, up.Resumed = stepProbation, 0
	return &probationRecord{Upgrade: up, Remaining: w.config.Time}
}

// probe looks at the core on probation, counts, and begins to put back what was before if the hub has been missed for too long.
func (w *probationWatch) probe(ctx context.Context) {
	if w.state.Probation == nil || w.core.core == nil { // the settings may have named a core when it began
		return
	}
	p, up := *w.state.Probation, w.state.Probation.Upgrade
	if w.config.Time == 0 {
		w.end("the agent's settings want none any more (upgrade.probation.time)")
		return
	}
	if up.Order.Version != "" && up.Order.Version != w.state.Version {
		w.end("another version was installed by hand")
		return
	}
	now := w.now()
	since := max(0, min(now.Sub(w.looked), 2*w.interval()))
	if since < w.interval() && !w.looked.IsZero() {
		return // it was called for another reason
	}
	if w.looked.IsZero() {
		since = 0
	}
	w.looked = now
	known, missed := w.core.missesHub(ctx, &p)
	switch {
	case ctx.Err() != nil:
		return
	case known && missed == nil:
		p.Remaining, p.HubMissed = p.Remaining-since, 0
	case known:
		p.Remaining, p.HubMissed = p.Remaining-since, p.HubMissed+since
	}
	limit := w.config.Away
	switch {
	case p.HubMissed >= limit && missed != nil:
		if len(up.Order.Settings) > 0 && !w.settings.applied(up.Order.Settings) {
			w.end("the core's file of settings was changed by hand")
			return
		}
		why := failf(resource.UpgradeFailedConnection, "%s lost the hub after it was committed: for %s %v, though %s could be reached",
			up.newName(), limit, missed, cmp.Or(p.Hub, "the hub"))
		w.log.Error().Err(why).Str("order", up.Order.ID).Msg("what was before is put back")
		change, _ := up.after(resultFailed, why)
		w.keep(func(s *upgradeState) { change(s); s.Probation = nil })
	case p.Remaining <= 0:
		w.end("its time is over")
	case p.Remaining/countInterval != w.state.Probation.Remaining/countInterval || (p.HubMissed == 0) != (w.state.Probation.HubMissed == 0):
		w.keep(func(s *upgradeState) { s.Probation = &p })
	default: // at most countInterval is counted again after a kill
		w.mu.Lock()
		w.state.Probation = &p
		w.mu.Unlock()
	}
}

// end ends the probation: what was before isn't put back any more.
func (w *probationWatch) end(why string) {
	w.log.Info().Str("reason", why).Msg("the probation of the last upgrade is over")
	up := w.state.Probation.Upgrade
	w.keep(func(s *upgradeState) { s.Probation = nil })
	up.Step = stepSucceeded
	w.over(up)
}

// Times in which a hub is reached: that of a connection, and that for which it has to keep one open that says nothing. What forwards connections to a hub
// that is away closes them at once.
const (
	reachTime = 5 * time.Second
	openTime  = time.Second
)

// isReachable says whether somebody takes a connection at a hub's address, and keeps it.
func isReachable(ctx context.Context, address string) bool {
	where, err := url.Parse(address)
	if err != nil || where.Hostname() == "" {
		return false
	}
	ports := map[string]string{"mqtt": "1883", "tcp": "1883", "mqtts": "8883", "ssl": "8883", "tls": "8883", "ws": "80", "wss": "443"}
	c, err := (&net.Dialer{Timeout: reachTime}).DialContext(ctx, "tcp", net.JoinHostPort(where.Hostname(), cmp.Or(where.Port(), ports[where.Scheme])))
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(openTime)); err != nil {
		return false
	}
	_, err = c.Read(make([]byte, 1))
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}
