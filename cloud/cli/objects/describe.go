// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
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

func newDescribe() *cobra.Command {
	var h access.Hub
	cmd := &cobra.Command{
		Use:   "describe KIND NAME…",
		Short: "Show all about objects",
		Long: `Show an object for people to read: its spec, status, twin and conditions, and the events about it.

` + exitcode.Help,
		Example:           "  edgebus describe device lamp\n  edgebus describe node/n1 devicemodel/dimmable-lamp",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeObjects(&h, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return describe(cmd, &h, args) },
	}
	h.Register(cmd)
	return cmd
}

func describe(cmd *cobra.Command, h *access.Hub, args []string) error {
	targets, err := parseTargets(cmd.Context(), h, args)
	if err != nil {
		return err
	}
	for i, t := range targets {
		if t.name == "" {
			return exitcode.Errorf(exitcode.Misused, "the name of a %s is missing", t.kind.Singular)
		}
		o, err := h.Object(cmd.Context(), t.kind, t.namespace, t.name)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		d := objectDescription{out: cmd.OutOrStdout(), now: time.Now()}
		if err := d.object(t.kind, o); err != nil {
			return err
		}
		var of resource.Device
		if t.kind.Name == resource.KindDevice && o.Into(&of) == nil {
			h.PrintOffline(cmd.Context(), cmd.ErrOrStderr(), []string{of.Spec.NodeName})
		}
		if err := d.events(cmd.Context(), h, o); err != nil {
			return err
		}
	}
	return nil
}

// objectDescription writes about an object.
type objectDescription struct {
	out io.Writer
	now time.Time
}

func (d objectDescription) object(k client.Kind, o client.Object) error {
	tree, err := o.Tree()
	if err != nil {
		return err
	}
	d.head(k, o.Metadata)
	for _, field := range slices.Sorted(maps.Keys(tree)) {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			if k.Name == "Secret" && strings.Contains(strings.ToLower(field), "data") {
				tree[field] = hideSecrets(tree[field])
			}
			if err := d.section(capitalise(field), tree[field]); err != nil {
				return err
			}
		}
	}
	status, _ := tree["status"].(map[string]any)
	delete(status, "twin") // these two have tables
	delete(status, "conditions")
	if err := d.section("Status", status); err != nil {
		return err
	}
	return d.status(o)
}

// line writes a field on one line.
func (d objectDescription) line(name, value string) {
	if value != "" {
		fmt.Fprintf(d.out, "%-13s %s\n", name+":", terminal.Printable(value, 200))
	}
}

func (d objectDescription) head(k client.Kind, m resource.Meta) {
	line := d.line
	line("Name", m.Name)
	line("Namespace", m.Namespace)
	line("Kind", k.Name+" ("+k.APIVersion()+")")
	line("Labels", formatLabels(m.Labels))
	notes := maps.Clone(m.Annotations)
	delete(notes, client.LastApplied)
	line("Annotations", formatLabels(notes))
	line("Owner", m.Owner)
	if m.CreationTimestamp != nil {
		line("Created", d.formatTime(*m.CreationTimestamp))
	}
	if m.DeletionTimestamp != nil {
		line("Deleted", d.formatTime(*m.DeletionTimestamp)+", waits for "+strings.Join(m.Finalizers, ", "))
	}
}

func (d objectDescription) formatTime(t time.Time) string {
	text := printer.Age(d.now.Sub(t))
	if text != "now" {
		text += " ago"
	}
	return fmt.Sprintf("%s (%s)", t.Local().Format(time.DateTime), text)
}

func formatLabels(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, ", ")
}

// hideSecrets replaces secret values by their lengths.
func hideSecrets(v any) any {
	secret, _ := v.(map[string]any)
	out := map[string]any{}
	for name, value := range secret {
		out[name] = fmt.Sprintf("%d characters", len(fmt.Sprint(value)))
	}
	return out
}

func capitalise(field string) string { return strings.ToUpper(field[:1]) + field[1:] }

// section writes a part of the object as YAML, without control characters.
func (d objectDescription) section(name string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return nil
		}
	case []any:
	default:
		if v != nil {
			d.line(name, fmt.Sprint(v))
		}
		return nil
	}
	text, err := printer.YAML(v)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s:\n", name)
	for line := range strings.Lines(text) {
		fmt.Fprintf(d.out, "  %s\n", terminal.Printable(strings.TrimRight(line, "\n"), 500))
	}
	return nil
}

// status writes tables of the twin and the conditions.
func (d objectDescription) status(o client.Object) error {
	var s struct {
		Status struct {
			Twin       map[string]resource.TwinProperty `json:"twin"`
			Conditions []resource.Condition             `json:"conditions"`
		} `json:"status"`
	}
	if err := o.Into(&s); err != nil {
		return nil // a status of another form was written as YAML
	}
	if len(s.Status.Twin) > 0 {
		if err := d.table("Twin", printer.TwinRows(s.Status.Twin, nil, d.now)); err != nil {
			return err
		}
	}
	if len(s.Status.Conditions) == 0 {
		return nil
	}
	rows := [][]string{{"TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range s.Status.Conditions {
		rows = append(rows, []string{c.Type, c.Status, formatSince(d.now, c.LastTransitionTime), c.Reason, terminal.Printable(c.Message, 300)})
	}
	return d.table("Conditions", rows)
}

func formatSince(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return printer.Age(now.Sub(t))
}

func (d objectDescription) table(name string, rows [][]string) error {
	fmt.Fprintf(d.out, "%s:\n", name)
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	return new(printer.AlignedRows).Write(d.out, rows)
}

// kubernetesEvent is an Event of either of Kubernetes' forms.
type kubernetesEvent struct {
	InvolvedObject struct {
		Kind, Namespace, Name string
	} `json:"involvedObject"`
	Type           string    `json:"type"`
	Reason         string    `json:"reason"`
	Message        string    `json:"message"`
	Note           string    `json:"note"`
	Count          int       `json:"count"`
	LastTimestamp  time.Time `json:"lastTimestamp"`
	EventTime      time.Time `json:"eventTime"`
	FirstTimestamp time.Time `json:"firstTimestamp"`
}

func (e kubernetesEvent) lastSeen() time.Time {
	return cmp.Or(e.LastTimestamp, e.EventTime, e.FirstTimestamp)
}

// events writes the Events about an object, if the hub has any.
func (d objectDescription) events(ctx context.Context, h *access.Hub, o client.Object) error {
	k, err := h.KindOf(ctx, resource.TypeMeta{APIVersion: "v1", Kind: "Event"})
	if err != nil {
		return nil // the hub doesn't serve Events
	}
	var all []kubernetesEvent
	which := client.ListOptions{
		Namespace: o.Metadata.Namespace,
		Fields:    "involvedObject.uid=" + o.Metadata.UID, // its kind may have another name in an Event, its name another object
	}
	_, err = h.List(ctx, k, which, func(page []client.Object) error {
		for _, got := range page {
			var e kubernetesEvent
			if err := got.Into(&e); err != nil {
				return err
			}
			all = append(all, e)
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	slices.SortStableFunc(all, func(a, b kubernetesEvent) int { return a.lastSeen().Compare(b.lastSeen()) })
	rows := [][]string{{"TYPE", "REASON", "AGE", "TIMES", "MESSAGE"}}
	for _, e := range all {
		rows = append(rows, []string{e.Type, e.Reason, formatSince(d.now, e.lastSeen()), fmt.Sprint(max(1, e.Count)), terminal.Printable(e.Message+e.Note, 300)})
	}
	return d.table("Events", rows)
}
