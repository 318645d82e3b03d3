// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func newRollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Follow, pause, resume and undo the rollout of a fleet",
		Long: `A change of a fleet's template becomes a version of it, which the hub gives to the fleet's nodes batch by batch, as
spec.rolloutPolicy says. These commands show how far that is, stop it and let it go on, and give the nodes an
earlier version again.`,
		Example: `  edgebus apply -f shops.yaml && edgebus rollout status shops   # change a fleet, and watch
  edgebus rollout pause shops                                   # start no more nodes
  edgebus rollout resume shops
  edgebus rollout history shops                                 # versions, and what changed in each
  edgebus rollout undo shops                                    # the version before, as it was
  edgebus rollout undo shops --to shops-0000004`,
	}
	cmd.AddCommand(newRolloutStatus(), newRolloutPause(true), newRolloutPause(false), newRolloutUndo(), newRolloutHistory())
	return cmd
}

// rolloutOptions are the flags of edgebus rollout.
type rolloutOptions struct {
	access.Hub
	output string
	to     string
	now    bool
	out    io.Writer
	errs   io.Writer
	fleet  resource.Fleet
	kind   client.Kind
}

// command completes a command that is about a fleet, which it reads first.
func (o *rolloutOptions) command(cmd *cobra.Command, run func(ctx context.Context) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.Long += "\n\n" + exitcode.Help
	cmd.ValidArgsFunction = o.CompleteNames("fleets", 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if o.kind, err = o.ReadObject(cmd.Context(), resource.KindFleet, args[0], &o.fleet); err != nil {
			return err
		}
		return run(cmd.Context())
	}
	o.Register(cmd)
	return cmd
}

func newRolloutStatus() *cobra.Command {
	o := &rolloutOptions{}
	cmd := o.command(&cobra.Command{
		Use:   "status FLEET",
		Short: "Show how far a rollout is, until it is finished or stops",
		Long: `Show how far the rollout of a fleet is: on a terminal as a bar that moves, elsewhere as a line for each change.
The command ends when the last batch is over (exit code 0), when too many nodes have failed (1; of a fleet
without a rolloutPolicy, any), or after --timeout (6). A rollout that is paused, outside of its window or waits for nodes that are offline is
waited for. With --now it shows the state once and ends with 0.`,
		Example: "  edgebus rollout status shops\n  edgebus rollout status shops --timeout 20m || edgebus rollout undo shops\n  edgebus rollout status shops --now",
	}, o.status)
	cmd.Flags().BoolVar(&o.now, "now", false, "show the state once, and wait for nothing")
	return cmd
}

func newRolloutPause(pause bool) *cobra.Command {
	o := &rolloutOptions{}
	cmd := &cobra.Command{
		Use:   "pause FLEET",
		Short: "Start no more nodes of a fleet",
		Long: `Set spec.paused of a fleet: no more of its nodes are given a version. Nodes that were given one before go on. Changes of
the template are taken, and go out when the rollout is resumed.`,
		Example: "  edgebus rollout pause shops",
	}
	if !pause {
		cmd.Use, cmd.Short, cmd.Example = "resume FLEET", "Let a paused rollout go on", "  edgebus rollout resume shops"
		cmd.Long = `Take spec.paused of a fleet away: its rollout goes on where it was. A rollout that has halted, since too many nodes failed,
goes on when the policy or the template is changed.`
	}
	return o.command(cmd, func(ctx context.Context) error {
		if o.fleet.Spec.Paused == pause {
			return o.say("unchanged")
		}
		var value any // null removes it
		said := "resumed"
		if pause {
			value, said = true, "paused"
		}
		return o.patch(ctx, map[string]any{"spec": map[string]any{"paused": value}}, said)
	})
}

func newRolloutUndo() *cobra.Command {
	o := &rolloutOptions{}
	cmd := o.command(&cobra.Command{
		Use:   "undo FLEET",
		Short: "Give the nodes of a fleet an earlier version again",
		Long: `Give the nodes of a fleet the version before the one that is rolled out now, or the one that --to names, with the
digests and commits that it had frozen. It goes out in batches as any version. The fleet's template stays as it is:
mend it, and the next version goes out by itself. --to with the newest version takes the undo back.

What is set is the annotation fleet-controller/rollBackTo, which also works for a fleet that a ResourceSync owns.`,
		Example: "  edgebus rollout undo shops\n  edgebus rollout undo shops --to shops-0000004",
	}, o.undo)
	cmd.Flags().StringVar(&o.to, "to", "", "the version, by its name or its number (default: the one before)")
	return cmd
}

func newRolloutHistory() *cobra.Command {
	o := &rolloutOptions{}
	cmd := o.command(&cobra.Command{
		Use:   "history FLEET",
		Short: "List the versions of a fleet, and what changed in each",
		Long: `List the versions of a fleet's template that are kept, the oldest first: their ages, whether they were rolled out to
the end, and what changed with each: the template, or the references that stood for something else than before.`,
		Example: "  edgebus rollout history shops\n  edgebus rollout history shops -o yaml",
	}, o.history)
	printer.OutputFlag(cmd, &o.output, "json and yaml are the TemplateVersions", "table", "json", "yaml")
	return cmd
}

func (o *rolloutOptions) say(what string) error {
	_, err := fmt.Fprintf(o.out, "%s %s\n", printer.Label(o.kind, o.fleet.Metadata.Name), what)
	return err
}

func (o *rolloutOptions) patch(ctx context.Context, change map[string]any, said string) error {
	if _, err := o.Patch(ctx, o.kind, "", o.fleet.Metadata.Name, change, client.WriteOptions{}); err != nil {
		return err
	}
	return o.say(said)
}

// versions are those of the fleet, the oldest first.
func (o *rolloutOptions) versions(ctx context.Context) (list []resource.TemplateVersion, raw []client.Object, err error) {
	k, err := o.KindOf(ctx, resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindTemplateVersion})
	if err != nil {
		return nil, nil, err
	}
	_, err = o.List(ctx, k, client.ListOptions{Fields: "spec.fleet=" + o.fleet.Metadata.Name}, func(page []client.Object) error {
		raw = append(raw, page...)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(raw, func(a, b client.Object) int { // a longer number is a larger one
		return cmp.Or(cmp.Compare(len(a.Metadata.Name), len(b.Metadata.Name)), strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, one := range raw {
		var v resource.TemplateVersion
		if err := one.Into(&v); err != nil {
			return nil, nil, err
		}
		list = append(list, v)
	}
	return list, raw, nil
}

// isOlderVersion reports whether a version is older than another one of the same fleet: a longer number is a larger one.
func isOlderVersion(version, other string) bool {
	return cmp.Or(cmp.Compare(len(version), len(other)), strings.Compare(version, other)) < 0
}

// undo names the version that nodes are to have.
func (o *rolloutOptions) undo(ctx context.Context) error {
	list, _, err := o.versions(ctx)
	if err != nil {
		return err
	}
	if len(list) == 0 || o.fleet.Status.Rollout == nil {
		return exitcode.Errorf(exitcode.Refused, "fleet %s has no version yet", o.fleet.Metadata.Name)
	}
	present := o.fleet.Status.Rollout.TemplateVersion
	is := func(name string) func(resource.TemplateVersion) bool {
		return func(v resource.TemplateVersion) bool {
			return v.Metadata.Name == name || strings.TrimLeft(strings.TrimPrefix(v.Metadata.Name, o.fleet.Metadata.Name+"-"), "0") == name
		}
	}
	i := len(list) - 1 // the last one before the present one, which may be gone
	for i >= 0 && !isOlderVersion(list[i].Metadata.Name, present) {
		i--
	}
	if o.to != "" {
		i = slices.IndexFunc(list, is(o.to))
	}
	if i < 0 {
		var names []string
		for _, v := range list {
			names = append(names, v.Metadata.Name)
		}
		what, near := "none before "+present, ""
		if o.to != "" {
			what, near = "no version "+terminal.Printable(o.to, 300), resource.DidYouMean(o.to, names)
		}
		return exitcode.Errorf(exitcode.NotFound, "fleet %s has %s; it has %s%s", o.fleet.Metadata.Name, what, strings.Join(names, ", "), near)
	}
	to := list[i].Metadata.Name
	var value any = to
	if to == cmp.Or(o.fleet.Metadata.Annotations[resource.VersionAnnotation], list[len(list)-1].Metadata.Name) {
		value = nil // the newest needs none
	}
	if to == present {
		return o.say("unchanged")
	}
	return o.patch(ctx, map[string]any{"metadata": map[string]any{"annotations": map[string]any{resource.RollBackAnnotation: value}}}, "is rolled back to "+to)
}

func (o *rolloutOptions) history(ctx context.Context) error {
	list, raw, err := o.versions(ctx)
	if err != nil {
		return err
	}
	if o.output != "table" {
		return printer.Objects(o.out, o.output, raw, false)
	}
	present := ""
	if r := o.fleet.Status.Rollout; r != nil {
		present = r.TemplateVersion
	}
	rows := [][]string{{"VERSION", "AGE", "ROLLED-OUT", "CHANGED"}}
	for i, v := range list {
		made := "–"
		if v.Metadata.CreationTimestamp != nil {
			made = printer.Age(time.Since(*v.Metadata.CreationTimestamp))
		}
		out := "no"
		if at, err := time.Parse(time.RFC3339, v.Status.RolledOutAt); err == nil {
			out = printer.Age(time.Since(at)) + " ago"
		}
		if v.Metadata.Name == present {
			out += ", now"
		}
		what := "–" // the one before is not known
		if i > 0 {
			what = versionChanges(list[i-1], v)
		}
		rows = append(rows, []string{v.Metadata.Name, made, out, what})
	}
	return new(printer.AlignedRows).Write(o.out, rows)
}

// versionChanges say what is new in a version.
func versionChanges(before, now resource.TemplateVersion) string {
	was, err1 := json.Marshal(before.Spec.Template)
	is, err2 := json.Marshal(now.Spec.Template)
	if err1 != nil || err2 != nil || string(was) != string(is) {
		return "the template"
	}
	known := make(map[resource.ReferenceKey]string)
	for _, r := range before.Spec.References {
		known[r.Key()] = r.Resolved
	}
	var names []string
	for _, r := range now.Spec.References {
		if known[r.Key()] != r.Resolved {
			names = append(names, strings.TrimSuffix(r.Type+" "+r.Source+":"+r.Floating, ":"))
		}
	}
	const most = 3
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("%d more", len(names)-most))
	}
	if len(names) == 0 {
		return "nothing that is frozen"
	}
	return terminal.Printable(strings.Join(names, ", "), printer.WidestCell)
}

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
	if r := o.fleet.Status.Rollout; r.FailedNodes > 0 && o.fleet.Spec.RolloutPolicy == nil { // nothing says how many may fail
		said := fmt.Sprintf("%d of %d nodes of %s failed to get %s: %s", r.FailedNodes, r.Nodes, o.fleet.Metadata.Name, r.TemplateVersion, terminal.Printable(r.Message, 500))
		return exitcode.Errorf(exitcode.Failed, "%s", strings.TrimSuffix(said, ": "))
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
