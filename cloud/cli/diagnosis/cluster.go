// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// ClusterDiagnosis is how several hubs are, and what is wrong with them.
type ClusterDiagnosis struct {
	resource.ClusterStatus
	Findings []Finding `json:"findings"`
}

const (
	lateHub     = 10 * time.Second // behind, after which a hub that stands by is no good one to take over
	lateServer  = 30 * time.Second // likewise, after which one of the log's servers may not catch up by itself
	mostClock   = 2 * time.Second  // that clocks may differ
	slowAnswer  = time.Second      // of the log's servers
	fewestReady = 2                // hubs, of which one serves
)

func (d *ClusterDiagnosis) add(is bool, m Mark, advice, format string, args ...any) {
	if is {
		d.Findings = append(d.Findings, Finding{m, fmt.Sprintf(format, args...), advice})
	}
}

// DiagnoseCluster says what is wrong with hubs that have a log in common, and what to do.
func DiagnoseCluster(s resource.ClusterStatus) ClusterDiagnosis {
	d := ClusterDiagnosis{ClusterStatus: s, Findings: []Finding{}}
	d.checkEngine()
	d.checkOwner()
	ready, barred, versions, newer := 0, false, map[string]bool{}, len(s.Hubs) > 0
	for _, h := range s.Hubs {
		d.checkOneHub(h)
		if h.Role != resource.RoleAway {
			versions[h.Version] = true
			newer = newer && h.Records > s.Records
		}
		if h.Role == resource.RoleOwner || h.Role == resource.RoleStandby && h.Barred == "" {
			ready++
		}
		barred = barred || h.Role == resource.RoleStandby && h.Barred != ""
	}
	advice := "start the other hubs (docs/cluster.md)"
	if barred { // which is said of each
		advice = ""
	}
	d.add(ready < fewestReady, MarkWrong, advice, "no other hub could take over now")
	d.add(len(versions) > 1, MarkLook, "upgrade the others as well, one at a time, those that stand by first", "the hubs have different versions")
	d.add(newer, MarkLook, "edgebus cluster finish-upgrade, when no hub is to go back to the version before", "all hubs know a newer version of records than the log's")
	return d
}

func (d *ClusterDiagnosis) checkEngine() {
	e := d.Engine
	if e.Error != "" {
		d.add(true, MarkWrong, "are two of its servers there, and does a firewall let this hub to them? see store.nats in hub.yaml", "the log's servers don't answer: %s", e.Error)
		return
	}
	d.add(e.Wrong != "", MarkWrong, "", "the log's settings are wrong: %s", e.Wrong)
	d.add(!e.Quorum, MarkWrong, "start the servers that are missing: nothing is acknowledged until most are there", "the log's servers have no quorum")
	whole := 0
	for _, s := range e.Servers {
		if s.Current && !s.Offline {
			whole++
		}
	}
	last := e.Quorum && whole == e.Replicas/2+1 // of five servers two may be lost
	for _, s := range e.Servers {
		advice := "start it"
		if last {
			advice += ": if one more is lost nothing is acknowledged"
		}
		d.add(s.Offline, MarkWrong, advice, "the log's server %s is gone", s.Name)
		if s.Offline || s.Current {
			continue
		}
		if s.BehindSeconds < lateServer.Seconds() {
			d.add(true, MarkLook, "", "the log's server %s is behind by %s", s.Name, amountOf(s.Lag, "operation"))
			continue
		}
		advice = "if it isn't less behind in a minute: stop it, delete its store_dir if there is nothing but this log in it, start it; if it is behind again, look at its disk and its network"
		if !e.Quorum || whole < e.Replicas-1 { // then it may be needed as it is: each frame has to be on enough of the others
			advice = ""
		} else if last {
			advice += ". If one more is lost meanwhile nothing is acknowledged"
		}
		d.add(true, MarkWrong, advice, "the log's server %s is behind by %s, for %s", s.Name, amountOf(s.Lag, "operation"), roundSeconds(s.BehindSeconds))
	}
	d.add(e.Quorum && len(e.Servers) < e.Replicas, MarkWrong, "", "the log is on %s, and %d are to have it", amountOf(uint64(len(e.Servers)), "server"), e.Replicas)
	d.add(e.Answer > slowAnswer.Seconds(), MarkLook, "look at its servers' disks, and at the network between them", "the log took %.1f s to answer", e.Answer)
}

func (d *ClusterDiagnosis) checkOwner() {
	switch {
	case d.Owner == "":
		d.add(true, MarkWrong, "", "hub %s has not read yet which hub serves", d.Hub)
	case !d.Owned:
		advice := "the logs of the hubs say why none of them takes over"
		if d.Engine.Error != "" || !d.Engine.Quorum {
			advice = "none can before the log's servers answer"
		}
		what := "nothing was heard of %s"
		if d.Owner == d.Hub {
			what = "%s, which has the log, has had no answer of it"
		}
		d.add(true, MarkWrong, advice, "no hub serves: "+what+" for %.1f s", d.Owner, d.Silent)
	default:
		d.add(true, MarkOK, "", "%s serves", d.Owner)
	}
}

func (d *ClusterDiagnosis) checkOneHub(h resource.ClusterHub) {
	d.add(h.Twice, MarkWrong, "give each hub a name of its own (store.nats.name)", "two hubs are called %s", h.Name)
	if h.Role == resource.RoleAway {
		d.add(true, MarkWrong, "start it; if it is gone for good there is nothing to do: it is forgotten a day after it was heard last", "hub %s was last heard %s ago", h.Name, roundSeconds(h.Heard))
		return
	}
	d.add(h.OtherAuth, MarkWrong, "make auth in hub.yaml of all hubs the same, and restart those that differ: each lets in whom its own file lists",
		"hub %s has other settings of auth than %s, which serves", h.Name, d.Owner)
	d.add(h.Role == resource.RoleDrained, MarkLook, "cloudhub cluster undrain, on its machine, ends that", "hub %s is drained: it doesn't take over", h.Name)
	d.add(h.Barred != "" && h.Role == resource.RoleStandby, MarkWrong, "", "hub %s can't take over: %s", h.Name, h.Barred)
	d.add(h.Role != resource.RoleOwner && h.BehindSeconds > lateHub.Seconds(), MarkWrong, "look at its disk and its network",
		"hub %s is behind by %s, for %s", h.Name, amountOf(h.BehindFrames, "frame"), roundSeconds(h.BehindSeconds))
	d.add(math.Abs(h.Clock) > mostClock.Seconds(), MarkWrong, "set the clocks, with NTP", "the clock of hub %s differs by %.1f s from that of %s", h.Name, h.Clock, d.Hub)
}

func amountOf(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func roundSeconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	if d > time.Minute {
		return d.Round(time.Second)
	}
	return d.Round(100 * time.Millisecond)
}

// ExitError is the exit code that says whether something is wrong.
func (d ClusterDiagnosis) ExitError() error {
	if slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Mark == MarkWrong }) {
		return exitcode.Code(1)
	}
	return nil
}

// Text is for people.
func (d ClusterDiagnosis) Text(on terminal.Colours) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "HUB\tROLE\tVERSION\tRECORDS\tPOSITION\tBEHIND\tCLOCK\tHEARD\n")
	for _, h := range d.Hubs {
		behind := "-"
		if h.BehindFrames > 0 {
			behind = fmt.Sprintf("%s, %s", amountOf(h.BehindFrames, "frame"), roundSeconds(h.BehindSeconds))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%+.1fs\t%s ago\n", terminal.Printable(h.Name, 100), h.Role, terminal.Printable(h.Version, 60), h.Records, h.Position, behind, math.Round(10*h.Clock)/10+0, roundSeconds(h.Heard))
	}
	if len(d.Engine.Servers) > 0 { // else they don't answer
		fmt.Fprint(w, "\nLOG SERVER\tROLE\tSTATE\n")
	}
	for _, s := range d.Engine.Servers {
		role, state := "replica", "current"
		if s.Leader {
			role = "leader"
		}
		switch {
		case s.Offline:
			state = "gone"
		case !s.Current:
			state = fmt.Sprintf("behind by %d", s.Lag)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", terminal.Printable(s.Name, 100), role, state)
	}
	_ = w.Flush() // of a buffer
	if e := d.Engine; e.Error == "" {
		fmt.Fprintf(&b, "\nThe log is %s %s: records of version %d, positions %d to %d, %d bytes on each server; it answered in %.0f ms.\n", e.Kind, terminal.Printable(e.Name, 100), d.Records, e.Floor+1, e.End, e.Bytes, 1000*e.Answer)
	}
	fmt.Fprintf(&b, "As hub %s knows it at %s:\n", terminal.Printable(d.Hub, 100), d.Now)
	writeFindings(&b, on, d.Findings)
	return b.String()
}
