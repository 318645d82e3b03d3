package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func newDescribe() *cobra.Command {
	var h hub
	cmd := &cobra.Command{
		Use:   "describe KIND NAME…",
		Short: "Show all about objects, for people to read",
		Long: `Show what is wanted of an object and what is known of it: its twin, its conditions, and the events
about it.

` + exitCodes,
		Example:           "  edgebus describe device lamp\n  edgebus describe node/n1 devicemodel/dimmable-lamp",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeObjects(&h, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return h.describe(cmd, args) },
	}
	h.flags(cmd)
	return cmd
}

func (h *hub) describe(cmd *cobra.Command, args []string) error {
	if err := h.open(cmd); err != nil {
		return err
	}
	targets, err := h.targets(cmd.Context(), args)
	if err != nil {
		return err
	}
	for i, t := range targets {
		if t.name == "" {
			return withCode(misused, "say which %s", t.kind.Singular)
		}
		o, err := h.Object(cmd.Context(), t.kind, t.namespace, t.name)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		d := description{out: cmd.OutOrStdout(), now: time.Now()}
		if err := d.object(t.kind, o); err != nil {
			return err
		}
		var of resource.Device
		if t.kind.Name == resource.KindDevice && o.Into(&of) == nil {
			h.tellLeft(cmd.Context(), cmd.ErrOrStderr(), []string{of.Spec.NodeName})
		}
		if err := d.events(cmd.Context(), h, o); err != nil {
			return err
		}
	}
	return nil
}

// description writes about an object.
type description struct {
	out io.Writer
	now time.Time
}

func (d description) object(k client.Kind, o client.Object) error {
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
				tree[field] = hidden(tree[field])
			}
			if err := d.section(title(field), tree[field]); err != nil {
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

// line is something that is said on one line.
func (d description) line(name, value string) {
	if value != "" {
		fmt.Fprintf(d.out, "%-13s %s\n", name+":", printable(value, 200))
	}
}

func (d description) head(k client.Kind, m resource.Meta) {
	line := d.line
	line("Name", m.Name)
	line("Namespace", m.Namespace)
	line("Kind", k.Name+" ("+k.APIVersion()+")")
	line("Labels", pairs(m.Labels))
	notes := maps.Clone(m.Annotations)
	delete(notes, client.LastApplied)
	line("Annotations", pairs(notes))
	line("Owner", m.Owner)
	if m.CreationTimestamp != nil {
		line("Created", d.when(*m.CreationTimestamp))
	}
	if m.DeletionTimestamp != nil {
		line("Deleted", d.when(*m.DeletionTimestamp)+", waits for "+strings.Join(m.Finalizers, ", "))
	}
}

func (d description) when(t time.Time) string {
	text := age(d.now.Sub(t))
	if text != "now" {
		text += " ago"
	}
	return fmt.Sprintf("%s (%s)", t.Local().Format(time.DateTime), text)
}

func pairs(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, ", ")
}

// hidden says how much there is of what must not be seen.
func hidden(v any) any {
	secret, _ := v.(map[string]any)
	out := map[string]any{}
	for name, value := range secret {
		out[name] = fmt.Sprintf("%d characters", len(fmt.Sprint(value)))
	}
	return out
}

func title(field string) string { return strings.ToUpper(field[:1]) + field[1:] }

// section is a part of the object as YAML. Nothing in it may steer a terminal.
func (d description) section(name string, v any) error {
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
	text, err := yamlText(v)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s:\n", name)
	for line := range strings.Lines(text) {
		fmt.Fprintf(d.out, "  %s\n", printable(strings.TrimRight(line, "\n"), 500))
	}
	return nil
}

// status has tables of what most kinds have alike.
func (d description) status(o client.Object) error {
	var s struct {
		Status struct {
			Twin       map[string]resource.TwinProperty `json:"twin"`
			Conditions []resource.Condition             `json:"conditions"`
		} `json:"status"`
	}
	if err := o.Into(&s); err != nil {
		return nil // a kind whose status is of another form was shown as it is
	}
	if len(s.Status.Twin) > 0 {
		if err := d.table("Twin", twinRows(s.Status.Twin, nil, d.now)); err != nil {
			return err
		}
	}
	if len(s.Status.Conditions) == 0 {
		return nil
	}
	rows := [][]string{{"TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range s.Status.Conditions {
		rows = append(rows, []string{c.Type, c.Status, since(d.now, c.LastTransitionTime), c.Reason, printable(c.Message, 300)})
	}
	return d.table("Conditions", rows)
}

func since(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return age(now.Sub(t))
}

func (d description) table(name string, rows [][]string) error {
	fmt.Fprintf(d.out, "%s:\n", name)
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	return new(grid).write(d.out, rows)
}

// event is an Event of either of Kubernetes' forms.
type event struct {
	Type           string    `json:"type"`
	Reason         string    `json:"reason"`
	Message        string    `json:"message"`
	Note           string    `json:"note"`
	Count          int       `json:"count"`
	LastTimestamp  time.Time `json:"lastTimestamp"`
	EventTime      time.Time `json:"eventTime"`
	FirstTimestamp time.Time `json:"firstTimestamp"`
}

func (e event) at() time.Time {
	for _, t := range []time.Time{e.LastTimestamp, e.EventTime} {
		if !t.IsZero() {
			return t
		}
	}
	return e.FirstTimestamp
}

// events shows what happened to an object, if the hub tells.
func (d description) events(ctx context.Context, h *hub, o client.Object) error {
	k, err := h.KindOf(ctx, resource.TypeMeta{APIVersion: "v1", Kind: "Event"})
	if err != nil {
		return nil // this hub has none
	}
	var all []event
	which := client.ListOptions{
		Namespace: o.Metadata.Namespace,
		Fields:    "involvedObject.uid=" + o.Metadata.UID, // its kind may have another name in an Event, its name another object
	}
	_, err = h.List(ctx, k, which, func(page []client.Object) error {
		for _, got := range page {
			var e event
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
	slices.SortStableFunc(all, func(a, b event) int { return a.at().Compare(b.at()) })
	rows := [][]string{{"TYPE", "REASON", "AGE", "TIMES", "MESSAGE"}}
	for _, e := range all {
		rows = append(rows, []string{e.Type, e.Reason, since(d.now, e.at()), fmt.Sprint(max(1, e.Count)), printable(e.Message+e.Note, 300)})
	}
	return d.table("Events", rows)
}
