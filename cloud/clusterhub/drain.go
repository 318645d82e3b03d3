// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/topics/resource"
)

// drainedFile says until when this hub doesn't take the log, whatever becomes of the others.
const drainedFile = "drained"

// drainedState is whether this hub is drained. It outlasts the process.
type drainedState struct {
	path string

	mu    sync.Mutex
	until time.Time
}

func openDrained(dir string) (*drainedState, error) {
	d := &drainedState{path: filepath.Join(dir, drainedFile)}
	text, err := os.ReadFile(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		d.until, err = parseDrained(string(text), time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("%s has no time until which the hub is drained: remove it (%w)", d.path, err)
	}
	return d, nil
}

// parseDrained reads until when a hub is drained, and for how long it was to be: longer than that it isn't, however far the clock was set back since.
func parseDrained(text string, now time.Time) (until time.Time, err error) {
	at, last, _ := strings.Cut(strings.TrimSpace(text), " ")
	if until, err = time.Parse(time.RFC3339, at); err != nil {
		return until, err
	}
	most := drainMost
	if last != "" {
		most, err = time.ParseDuration(last)
	}
	return now.Add(min(until.Sub(now), most)), err // by the clock of the process from now on, which nobody sets
}

func (d *drainedState) set(until time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := datadir.WriteFile(d.path, fmt.Appendln(nil, until.UTC().Format(time.RFC3339), time.Until(until).Round(time.Second)))
	if err == nil {
		d.until = until
	}
	return err
}

func (d *drainedState) end() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := os.Remove(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		d.until = time.Time{}
	}
	return err
}

// left is until when the hub is drained; zero: it isn't.
func (d *drainedState) left(now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.until) {
		return d.until
	}
	return time.Time{}
}

// mayTake is why a hub that is drained must not own the log.
func (d *drainedState) mayTake() error {
	if until := d.left(time.Now()); !until.IsZero() {
		return fmt.Errorf("it is drained until %s, or until `cloudhub cluster undrain`", resource.FormatTime(until))
	}
	return nil
}

// drainPlan is what becomes of draining a hub.
type drainPlan struct {
	Hub   string    `json:"hub"`
	Owns  bool      `json:"owns"`
	Owner string    `json:"owner"`
	To    []string  `json:"to"` // hubs that can take over
	Until time.Time `json:"until"`
}

// planDrain looks whether another hub serves when this one, which owns the log or not, is drained.
func planDrain(st resource.ClusterStatus, owns bool, last time.Duration) (p drainPlan, err error) {
	p = drainPlan{Hub: st.Hub, Owner: st.Owner, Owns: owns, Until: time.Now().Add(last)}
	var not []string
	if !st.Owned { // without most of the log's servers no hub can take over, whichever stands by
		not = append(not, fmt.Sprintf("nothing was heard of %s, which served, for %.1f s", cmp.Or(st.Owner, "the hub"), st.Silent))
		st.Hubs = nil
	}
	for _, h := range st.Hubs {
		switch {
		case h.Name == st.Hub:
		case h.Role == resource.RoleOwner || h.Role == resource.RoleStandby && h.Barred == "" && h.BehindSeconds < drainLag.Seconds():
			p.To = append(p.To, h.Name)
		case h.Role == resource.RoleStandby && h.Barred != "":
			not = append(not, fmt.Sprintf("%s can't (%s)", h.Name, h.Barred))
		case h.Role == resource.RoleStandby:
			not = append(not, fmt.Sprintf("%s is behind by %d frames", h.Name, h.BehindFrames))
		default:
			not = append(not, fmt.Sprintf("%s is %s", h.Name, h.Role))
		}
	}
	if len(p.To) == 0 {
		if not == nil {
			not = []string{"no other hub was heard"}
		}
		err = fmt.Errorf("no other hub could serve then: %s. Nothing was changed", strings.Join(not, "; "))
	}
	return p, err
}

const (
	drainLag  = 5 * time.Second
	drainLast = time.Hour
	drainMost = 30 * 24 * time.Hour
)

// serveDrain answers cloudhub cluster drain at the socket.
func (s *SharedLog) serveDrain(w http.ResponseWriter, r *http.Request) {
	last, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil || last <= 0 || last > drainMost {
		http.Error(w, fmt.Sprintf("--for is a time up to %s, such as 30m", drainMost), http.StatusBadRequest)
		return
	}
	p, err := planDrain(s.status(r.Context()), s.member.Owns(), last)
	dry := r.URL.Query().Has("dry-run")
	if err == nil && !dry {
		err = s.drained.set(p.Until)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	text, err := json.Marshal(p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client may have gone
	if !dry {
		_ = http.NewResponseController(w).Flush() // the hub that hands over ends this connection
		s.log.Warn().Time("until", p.Until).Bool("owner", p.Owns).Msg("this hub is drained: it hands the log over if it owns it, and does not take it until then")
		s.teller.tell(false)
		if p.Owns {
			s.again()
		}
	}
}

func (s *SharedLog) serveUndrain(w http.ResponseWriter, _ *http.Request) {
	if err := s.drained.end(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.teller.tell(false)
	_, _ = w.Write([]byte("{}\n")) // the client may have gone
}

// drainHub is the command drain.
func drainHub(c *clusterCall) error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	query := "?for=" + c.last.String()
	var p drainPlan
	if err := c.call(ctx, http.MethodPost, drainPath+query+"&dry-run", &p); err != nil {
		return err
	}
	until := p.Until.Local().Format(time.DateTime + " MST")
	if p.Owns {
		fmt.Fprintf(c.stdout, "Hub %s serves. It ends its connections in order and hands the log over; %s can take over. It stands by then, and does not take over until %s.\n", p.Hub, strings.Join(p.To, " or "), until)
	} else {
		fmt.Fprintf(c.stdout, "Hub %s stands by, %s serves. It goes on standing by, and does not take over until %s.\n", p.Hub, p.Owner, until)
	}
	if c.dryRun {
		fmt.Fprintln(c.stdout, "Nothing was changed.")
		return nil
	}
	if err := c.call(ctx, http.MethodPost, drainPath+query, &p); err != nil {
		return err
	}
	for {
		d, err := c.ask(ctx)
		if err == nil && d.Owned && d.Owner != "" && d.Owner != p.Hub {
			fmt.Fprintf(c.stdout, "%s serves. `cloudhub cluster undrain` lets %s take over again before that time.\n", d.Owner, p.Hub)
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("no other hub has taken over yet: `cloudhub cluster status` says why, and `cloudhub cluster undrain` lets this one do so")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func undrainHub(c *clusterCall) error {
	ctx, stop := context.WithTimeout(context.Background(), askTime)
	defer stop()
	err := c.call(ctx, http.MethodPost, undrainPath, &struct{}{})
	if err == nil {
		fmt.Fprintln(c.stdout, "This hub takes over again if need be.")
	}
	return err
}

const (
	drainPath   = clusterPath + "/drain"
	undrainPath = clusterPath + "/undrain"
)

// backUpHub is the command backup: that of a hub that has all there is, and stands by if one does.
func backUpHub(c *clusterCall) error {
	d, err := c.ask(context.Background())
	if err != nil {
		return err
	}
	standby := ""
	for _, h := range d.Hubs {
		switch {
		case h.Name == d.Hub && h.BehindSeconds > drainLag.Seconds():
			return fmt.Errorf("hub %s is behind by %d frames: make the backup when it has them, or at another hub", h.Name, h.BehindFrames)
		case h.Name != d.Hub && h.Role == resource.RoleStandby:
			standby = h.Name
		}
	}
	switch {
	case !d.Owned && !c.force:
		return fmt.Errorf("nothing was heard of the hub that serves for %.1f s: this hub may lack what it acknowledged. --force makes a backup of what is here", d.Silent)
	case d.Owner == d.Hub && standby != "" && !c.force:
		return fmt.Errorf("hub %s serves: make the backup at %s, which stands by and has all there is. --force makes it here", d.Hub, standby)
	}
	args := []string{"backup", "--data-dir", c.cfg.Data.Dir, c.flags.Arg(0)}
	if c.force {
		args = append(args, "--force")
	}
	code, _ := hubdata.Program().Main(args, c.stdout, c.stderr)
	return exitCode(code)
}
