package upgrade

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// probationRecord is that of what an upgrade has committed: what was before is kept for some time, and is put back if the core loses the hub meanwhile.
type probationRecord struct {
	// Upgrade is the record of the upgrade, in stepProbation.
	Upgrade upgradeRecord `json:"upgrade"`
	// Remaining is how much longer it lasts: time in which the agent runs, and the hub is heard or could be.
	Remaining time.Duration `json:"left"`
	// HubMissed is how long the hub has been missed by now, though it could be reached.
	HubMissed time.Duration `json:"away,omitempty"`
	// Hub is its address, as the core has said.
	Hub string `json:"hub,omitempty"`
}

// Times of a probation: between two looks at the core, and after which what was counted is written.
const (
	probeInterval = 10 * time.Second
	countInterval = time.Minute
)

// probeAfter is the time between two looks at the core on probation.
func (u *Upgrader) probeAfter() time.Duration {
	return max(10*time.Millisecond, min(probeInterval, u.o.Config.Probation.Away/5))
}

// newHostOnProbation is the probation of an upgrade that has succeeded; nil: it has changed nothing of the core, or the node's settings want none.
func (u *Upgrader) onProbation(up upgradeRecord) *probationRecord {
	if u.o.Config.Probation.Time == 0 || up.Order.Version != "" && up.Order.Version == up.From {
		return nil
	}
	up.Step, up.Resumed = stepProbation, 0
	return &probationRecord{Upgrade: up, Remaining: u.o.Config.Probation.Time}
}

// probe looks at the core on probation, counts, and begins to put back what was before if the hub has been missed for too long.
func (u *Upgrader) probe(ctx context.Context) {
	if u.state.Probation == nil || u.core == nil { // the settings may have named a core when it began
		return
	}
	p, up := *u.state.Probation, u.state.Probation.Upgrade
	if u.o.Config.Probation.Time == 0 {
		u.passed("the agent's settings want none any more (upgrade.probation.time)")
		return
	}
	if up.Order.Version != "" && up.Order.Version != u.state.Version {
		u.passed("another version was installed by hand")
		return
	}
	now := u.o.Now()
	since := max(0, min(now.Sub(u.probed), 2*u.probeAfter()))
	if since < u.probeAfter() && !u.probed.IsZero() {
		return // it was called for another reason
	}
	if u.probed.IsZero() {
		since = 0
	}
	u.probed = now
	known, missed := u.missed(ctx, &p)
	switch {
	case ctx.Err() != nil:
		return
	case known && missed == nil:
		p.Remaining, p.HubMissed = p.Remaining-since, 0
	case known:
		p.Remaining, p.HubMissed = p.Remaining-since, p.HubMissed+since
	}
	limit := u.o.Config.Probation.Away
	switch {
	case p.HubMissed >= limit && missed != nil:
		if len(up.Order.Settings) > 0 && !u.hasSettings(up.Order.Settings) {
			u.passed("the core's file of settings was changed by hand")
			return
		}
		why := failf(resource.UpgradeFailedConnection, "%s lost the hub after it was committed: for %s %v, though %s could be reached",
			up.newName(), limit, missed, cmp.Or(p.Hub, "the hub"))
		u.log.Error().Err(why).Str("order", up.Order.ID).Msg("what was before is put back")
		change, _ := up.after(resultFailed, why)
		u.keep(func(s *upgradeState) { change(s); s.Probation = nil })
	case p.Remaining <= 0:
		u.passed("its time is over")
	case p.Remaining/countInterval != u.state.Probation.Remaining/countInterval || (p.HubMissed == 0) != (u.state.Probation.HubMissed == 0):
		u.keep(func(s *upgradeState) { s.Probation = &p })
	default: // at most countInterval is counted again after a kill
		u.mu.Lock()
		u.state.Probation = &p
		u.mu.Unlock()
	}
}

// passed ends the probation: what was before isn't put back any more.
func (u *Upgrader) passed(why string) {
	u.log.Info().Str("reason", why).Msg("the probation of the last upgrade is over")
	up := u.state.Probation.Upgrade
	u.keep(func(s *upgradeState) { s.Probation = nil })
	up.Step = stepSucceeded
	u.tidy(up, false)
}

// missed says why the core is without its hub, though that could be reached. It is not known while nothing can be said for or against the core: nobody
// has it run, or the hub can't be reached from this host either.
func (u *Upgrader) missed(ctx context.Context, p *probationRecord) (known bool, missed error) {
	if pid, _ := u.core.process(ctx); pid == 0 {
		return false, nil
	}
	r, err := askCore(ctx, u.o.Config.Core.Data)
	if errors.Is(err, errNoState) {
		return true, nil
	}
	if len(r.Links) > 0 {
		p.Hub = cmp.Or(r.Links[0].Peer, p.Hub)
	}
	if err != nil {
		return true, err
	}
	if err := checkHeard(r, u.o.Config.Probation.Away); err != nil {
		return isReachable(ctx, p.Hub), err
	}
	return true, nil
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
