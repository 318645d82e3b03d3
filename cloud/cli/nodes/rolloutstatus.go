package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// status shows a fleet's rollout until it ends.
func (o *rolloutOptions) status(ctx context.Context) error {
	p := rolloutBar{out: o.out}
	_, p.live = terminal.Size(o.out)
	if o.now {
		p.live = false
		p.show(o.fleet)
		return nil
	}
	ended, err := p.show(o.fleet), error(nil)
	if !ended {
		deleted := resource.Errorf(resource.NotFound, "", "the fleet %s was deleted", o.fleet.Metadata.Name)
		err = access.EachVersion(ctx, &o.Hub, resource.KindFleet, o.fleet.Metadata.Name, deleted, func(f resource.Fleet) error {
			o.fleet = f
			if ended = p.show(f); ended {
				return access.ErrStopWatch
			}
			return nil
		})
	}
	p.end()
	switch {
	case !ended && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return exitcode.Errorf(exitcode.TimedOut, "the rollout of %s is not finished: %s", o.fleet.Metadata.Name, unfinishedReason(o.fleet))
	case !ended:
		return exitcode.IgnoreEnd(err)
	case isFinished(o.fleet) && rolledBackByItself(o.fleet):
		r := o.fleet.Status.Rollout
		return exitcode.Errorf(exitcode.Failed, "%s halted, and was rolled back to %s", r.RolledBackFrom, r.TemplateVersion)
	case !isFinished(o.fleet):
		return exitcode.Errorf(exitcode.Failed, "the rollout of %s has stopped: %s", o.fleet.Metadata.Name, unfinishedReason(o.fleet))
	}
	return nil
}

// isObserved reports whether the status of a fleet is about what its present spec and annotations ask for.
func isObserved(f resource.Fleet) bool {
	r := f.Status.Rollout
	if r == nil || r.ObservedGeneration < f.Metadata.Generation {
		return false
	}
	if to := f.Metadata.Annotations[resource.RollBackAnnotation]; to != "" {
		return r.TemplateVersion == to
	}
	return r.RolledBackFrom == ""
}

// isFinished reports whether the present template of a fleet, or what is rolled out instead of it, has reached its last batch.
func isFinished(f resource.Fleet) bool {
	r := f.Status.Rollout
	return isObserved(f) && r.FinishedAt != ""
}

func rolledBackByItself(f resource.Fleet) bool {
	p := f.Spec.RolloutPolicy
	return f.Status.Rollout.RolledBackFrom != "" && p != nil && p.OnFailure == resource.OnFailureRollBack
}

// isStopped reports whether a rollout can't go on without an operator: too many nodes have failed, or there is no version to roll
// out.
func isStopped(f resource.Fleet) bool {
	c, _ := access.FindCondition(f.Status.Conditions, "TemplateResolved")
	unresolved := c.Status == "False" && c.ObservedGeneration >= f.Metadata.Generation
	r := f.Status.Rollout
	return unresolved || isObserved(f) && r.Reason == "Halted"
}

func unfinishedReason(f resource.Fleet) string {
	if c, _ := access.FindCondition(f.Status.Conditions, "TemplateResolved"); c.Status == "False" {
		return terminal.Printable(c.Message, 500)
	}
	if r := f.Status.Rollout; r != nil {
		return terminal.Printable(strings.TrimPrefix(r.Reason+": "+r.Message, ": "), 500)
	}
	return "it has not begun"
}

// rolloutBar shows the state of a rollout: on a terminal in one line that changes.
type rolloutBar struct {
	out  io.Writer
	live bool
	last string
}

// show shows a state if it is another than before, and says whether it is the last one.
func (p *rolloutBar) show(f resource.Fleet) (ended bool) {
	line := progressLine(f)
	switch {
	case line == p.last:
	case p.live:
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	default:
		fmt.Fprintln(p.out, line)
	}
	p.last = line
	return isFinished(f) || isStopped(f)
}

func (p *rolloutBar) end() {
	if p.live && p.last != "" {
		fmt.Fprintln(p.out)
	}
}

// barWidth is that of the bar, in characters.
const barWidth = 24

// progressLine is the state of a rollout in one line, such as
//
//	shops-0000008 [##########>.............] 412/1000, batch 3/5, 20 updating, 3 failed, LaterBatch
func progressLine(f resource.Fleet) string {
	r := f.Status.Rollout
	if r == nil {
		return f.Metadata.Name + ": " + unfinishedReason(f)
	}
	share := func(n int) int { return n * barWidth / max(1, r.Nodes) }
	done := min(barWidth, share(r.Updated))
	under := min(barWidth-done, share(r.Updated+r.Updating)-share(r.Updated))
	text := fmt.Sprintf("%s [%s%s%s] %d/%d, batch %d/%d", r.TemplateVersion,
		strings.Repeat("#", done), strings.Repeat(">", under), strings.Repeat(".", barWidth-done-under), r.Updated, r.Nodes, r.Batch, r.Batches)
	add := func(n int, what string) {
		if n > 0 {
			text += fmt.Sprintf(", %d %s", n, what)
		}
	}
	add(r.Updating, "updating")
	add(r.FailedNodes, "failed")
	if r.RolledBackFrom != "" {
		text += ", instead of " + r.RolledBackFrom
	}
	switch c, _ := access.FindCondition(f.Status.Conditions, "TemplateResolved"); {
	case c.Status == "False":
		text += ", the template can't be resolved"
	case r.Reason != "":
		text += ", " + r.Reason
	case r.FinishedAt != "":
		text += ", finished"
	}
	return text
}
