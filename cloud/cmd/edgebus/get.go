package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// getOptions are the flags of edgebus get and watch, and what is printed.
type getOptions struct {
	hub
	output, labels, fields string
	all, watch, rendered   bool
	out, errs              io.Writer

	mixed   bool            // there are several kinds: names are printed with theirs
	table   *tablePrinter   // of the last kind
	nodes   []string        // of devices that were printed
	objects []client.Object // to be printed as json or yaml
}

func newGet() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use:   "get KIND [NAME…]",
		Short: "Show objects",
		Long: `Show objects of a kind: all of a namespace, those that -l selects, or some by name. Kinds have
long and short names (devices, device, dev), and several may be given, separated by commas. The hub
decides which kinds exist, and what their tables show: edgebus kinds lists them.

` + exitCodes,
		Example: `  edgebus get devices
  edgebus get dev lamp -o yaml
  edgebus get devices,devicemodels -A -o wide
  edgebus get all
  edgebus get nodes -l site=hall -w
  edgebus get device/lamp -o json | jq .status.twin
  edgebus get node/n1 --rendered -o yaml`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "show every change after that, until ctrl-C")
	cmd.Flags().BoolVar(&o.rendered, "rendered", false, "of a node: what it is to apply, as its spec was rendered, as yaml unless -o says json")
	o.register(cmd)
	return cmd
}

func newWatch() *cobra.Command {
	o := &getOptions{watch: true}
	cmd := &cobra.Command{
		Use:   "watch KIND [NAME]",
		Short: "Show objects, and every change of them, until ctrl-C",
		Long: `Show objects like edgebus get, and then each again whenever it changes, with the time and the values
that changed. If the hub restarts meanwhile, the watch continues without a gap.`,
		Example:           "  edgebus watch devices\n  edgebus watch device lamp -o json | jq .status.state",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.hub, 2),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.register(cmd)
	return cmd
}

func (o *getOptions) register(cmd *cobra.Command) {
	o.flags(cmd)
	f := cmd.Flags()
	outputFlag(cmd, &o.output, "name prints what other commands take as arguments", "table", "wide", "json", "yaml", "name")
	f.StringVarP(&o.labels, "selector", "l", "", "only objects with these labels: room=hall,floor!=2")
	f.StringVar(&o.fields, "field-selector", "", "only objects with these fields: spec.nodeName=n1")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
}

func (o *getOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	targets, err := parseTargets(cmd.Context(), &o.hub, args)
	if err != nil {
		return err
	}
	o.mixed = slices.ContainsFunc(targets, func(t objectRef) bool { return t.kind.Qualified() != targets[0].kind.Qualified() })
	named := targets[0].name != ""
	switch {
	case o.rendered:
		return o.printRendered(cmd.Context(), targets)
	case named && (o.labels != "" || o.fields != "" || o.all):
		return exitErrorf(misused, "a name can't be combined with -l, --field-selector or -A")
	case o.watch && len(targets) > 1:
		return exitErrorf(misused, "one kind can be watched at a time, or one object")
	case o.watch:
		return o.watchObjects(cmd.Context(), targets[0])
	case named:
		err = o.getNamed(cmd.Context(), targets)
	default:
		err = o.getAll(cmd.Context(), targets)
	}
	if err != nil && len(o.objects) == 0 {
		return err
	}
	o.printOffline(cmd.Context(), o.errs, o.nodes)
	if !named && targets[0].kind.Plural == "nodes" {
		o.printWaiting(cmd.Context())
	}
	if o.output == "json" || o.output == "yaml" {
		err = errors.Join(printDocuments(o.out, o.output, o.objects, named && len(targets) == 1), err)
	}
	return err
}

// printRendered prints what nodes are to apply.
func (o *getOptions) printRendered(ctx context.Context, targets []objectRef) error {
	format := o.output
	if format == "table" {
		format = "yaml"
	}
	for _, t := range targets {
		host := t.kind.Plural == "nodes" || t.kind.Group == "flightctl.io" && t.kind.Plural == "devices"
		if t.name == "" || !host || o.watch || format != "yaml" && format != "json" {
			return exitErrorf(misused, "--rendered is for nodes by name, without -w, with -o yaml or json: edgebus get node/n1 --rendered")
		}
	}
	for _, t := range targets {
		var spec client.Object
		if err := o.Get(ctx, "/apis/"+resource.APIVersion+"/nodes/"+url.PathEscape(t.name)+"/rendered", &spec); err != nil {
			return err
		}
		var pending struct{ Kind, Message string }
		if err := spec.Into(&pending); err == nil && pending.Kind == "Status" { // 202
			return resource.Errorf(resource.Unavailable, "", "node %s: %s", t.name, pending.Message)
		}
		o.objects = append(o.objects, spec)
	}
	return printDocuments(o.out, format, o.objects, len(targets) == 1)
}

// printWaiting prints which nodes wait for approval. If that can't be found out, it prints nothing.
func (o *getOptions) printWaiting(ctx context.Context) {
	if !o.isTable() {
		return
	}
	var list struct{ Items []resource.EnrollmentRequest }
	_ = o.Get(ctx, "/apis/"+resource.APIVersion+"/enrollmentrequests", &list)
	waiting := requestsByNode(list.Items)
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		fmt.Fprintln(o.errs, waitingText(node, waiting[node]))
	}
}

// objectRef is a kind, or with a name one object of it.
type objectRef struct {
	kind            client.Kind
	namespace, name string
}

const usageTargets = "a kind is needed, and perhaps names: KIND [NAME…], KIND/NAME… or KIND/NAMESPACE/NAME…, such as devices, or device lamp"

// parseTargets reads KIND [NAME…], KIND,KIND… or KIND/NAME….
func parseTargets(ctx context.Context, h *hub, args []string) (all []objectRef, err error) {
	if len(args) == 0 {
		return nil, exitErrorf(misused, "%s", usageTargets)
	}
	add := func(kind, name string) error {
		k, err := h.Kind(ctx, kind)
		all = append(all, objectRef{k, h.namespaceOf(k), name})
		return err
	}
	if strings.Contains(args[0], "/") {
		for _, arg := range args {
			parts := strings.Split(arg, "/")
			if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
				return nil, exitErrorf(misused, "%q: %s", arg, usageTargets)
			}
			if err := add(parts[0], parts[len(parts)-1]); err != nil {
				return nil, err
			}
			if last := &all[len(all)-1]; len(parts) == 3 && last.kind.Namespaced {
				last.namespace = parts[1]
			}
		}
		return all, nil
	}
	kinds := strings.Split(args[0], ",")
	if args[0] == "all" && len(args) == 1 {
		known, err := h.Kinds(ctx)
		if err != nil {
			return nil, err
		}
		kinds = nil
		for _, k := range known {
			if slices.Contains(k.Categories, "all") {
				kinds = append(kinds, k.Qualified())
			}
		}
	}
	if len(kinds) > 1 && len(args) > 1 {
		return nil, exitErrorf(misused, "names are for one kind: %s", usageTargets)
	}
	names := args[1:]
	if len(names) == 0 {
		names = []string{""} // all of them
	}
	for _, kind := range kinds {
		for _, name := range names {
			if err := add(kind, name); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// show prints objects of a kind: rows of a table, or their names. Those for json and yaml are collected.
func (o *getOptions) show(k client.Kind, t client.Table, note string) error {
	switch o.output {
	case "table", "wide":
		if o.table == nil || o.table.kind.Qualified() != k.Qualified() {
			if o.table != nil && o.table.headed && len(t.Rows) > 0 {
				fmt.Fprintln(o.out)
			}
			o.table = &tablePrinter{out: o.out, wide: o.output == "wide", namespaces: o.all && k.Namespaced, kind: k, named: o.mixed}
		}
		err := o.table.print(t, note)
		o.nodes, o.table.nodes = append(o.nodes, o.table.nodes...), nil
		return err
	case "name":
		for _, r := range t.Rows {
			name := r.Object.Metadata.Name
			if o.all && k.Namespaced {
				name = r.Object.Metadata.Namespace + "/" + name
			}
			if _, err := fmt.Fprintln(o.out, objectLabel(k, name)); err != nil {
				return err
			}
		}
	default:
		for _, r := range t.Rows {
			o.objects = append(o.objects, r.Object)
		}
	}
	return nil
}

// showAtOnce is like show, but prints each object at once, as a document of its own.
func (o *getOptions) showAtOnce(k client.Kind, t client.Table, note string) error {
	err := o.show(k, t, note)
	for _, got := range o.objects {
		if o.output == "yaml" {
			fmt.Fprintln(o.out, "---")
		}
		err = errors.Join(err, printDocuments(o.out, o.output, []client.Object{got}, true))
	}
	o.objects = nil
	return err
}

func (o *getOptions) isTable() bool { return o.output == "table" || o.output == "wide" }

// getNamed shows objects by name. An error is printed for each that can't be read.
func (o *getOptions) getNamed(ctx context.Context, targets []objectRef) error {
	var count failureCount
	for i, t := range targets {
		row, err := o.Row(ctx, t.kind, t.namespace, t.name, !o.isTable())
		if err == nil {
			err = o.show(t.kind, row, "")
		}
		if len(targets) == 1 && err != nil {
			return err
		}
		if err != nil {
			count.addFailure(o.errs, "", err)
			if interrupted(ctx, o.errs, len(targets)-i-1) {
				break
			}
		}
	}
	return count.err()
}

// getAll shows all objects of each kind.
func (o *getOptions) getAll(ctx context.Context, targets []objectRef) error {
	for _, t := range targets {
		n := 0
		_, err := o.Tables(ctx, t.kind, o.options(t), func(page client.Table) error {
			n += len(page.Rows)
			return o.show(t.kind, page, "")
		})
		if err != nil {
			return err
		}
		if n == 0 && o.isTable() && len(targets) < mostEmptyKinds {
			o.printNone(t.kind)
		}
	}
	return nil
}

// mostEmptyKinds is the number of kinds from which on kinds without objects are not listed one by one.
const mostEmptyKinds = 5

// printNone prints that there are no objects, on standard error, because programs read standard output.
func (o *getOptions) printNone(k client.Kind) {
	where := ""
	if k.Namespaced && !o.all {
		where = " in namespace " + o.namespace
	}
	if o.labels != "" || o.fields != "" {
		where += " that " + strings.Trim(o.labels+" "+o.fields, " ") + " selects"
	}
	fmt.Fprintf(o.errs, "no %s%s\n", k.Plural, where)
}

func (o *getOptions) options(t objectRef) client.ListOptions {
	lo := client.ListOptions{Labels: o.labels, Fields: o.fields, Whole: o.watch || !o.isTable() && o.output != "name"}
	if !o.all {
		lo.Namespace = t.namespace
	}
	if t.name != "" {
		lo.Fields = "metadata.name=" + t.name
	}
	return lo
}

// watchObjects shows the objects, and then every change, until it is interrupted.
func (o *getOptions) watchObjects(ctx context.Context, t objectRef) error {
	shown := lastValues{}
	for {
		n := 0
		rev, err := o.Tables(ctx, t.kind, o.options(t), func(page client.Table) error {
			n += len(page.Rows)
			for _, row := range page.Rows {
				shown.changeNote("", row.Object, time.Now())
			}
			return o.showAtOnce(t.kind, page, "")
		})
		if err == nil && n == 0 && t.name != "" { // the answer for one object says which may have been meant
			_, err = o.Object(ctx, t.kind, t.namespace, t.name)
		}
		if err == nil {
			err = o.WatchTables(ctx, t.kind, o.options(t), rev, func(e client.Event) error { return o.printChange(t.kind, e, shown) })
		}
		if !errors.Is(err, resource.Gone) {
			return ignoreEnd(err)
		}
	}
}

// printChange shows a change.
func (o *getOptions) printChange(k client.Kind, e client.Event, shown lastValues) error {
	note := ""
	if o.isTable() && len(e.Table.Rows) == 1 {
		var changed bool
		if note, changed = shown.changeNote(e.Type, e.Table.Rows[0].Object, time.Now()); !changed {
			e.Table.Rows = nil // but its columns count
		}
	}
	if e.Type == "DELETED" && !o.isTable() {
		return nil // the deleted object would look like an existing one
	}
	return o.showAtOnce(k, *e.Table, note)
}

func newKinds() *cobra.Command {
	var h hub
	cmd := &cobra.Command{
		Use:   "kinds",
		Short: "List the kinds of objects that the hub serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := h.Kinds(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"KIND", "NAMES", "APIVERSION", "NAMESPACED"}}
			for _, k := range all {
				names := append([]string{k.Plural, cmp.Or(k.Singular, k.Plural)}, k.Short...)
				rows = append(rows, []string{k.Name, strings.Join(names, ", "), k.APIVersion(), fmt.Sprint(k.Namespaced)})
			}
			return new(alignedRows).write(cmd.OutOrStdout(), rows)
		},
	}
	h.flags(cmd)
	return cmd
}

// valuesByPath are an object's values by their paths, without those that change with each other value, such as times and versions.
func valuesByPath(o client.Object) (map[string]string, error) {
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		kept := map[string]any{}
		for _, field := range []string{"labels", "annotations", "deletionTimestamp"} {
			if v, ok := meta[field]; ok {
				kept[field] = v
			}
		}
		if notes, ok := kept["annotations"].(map[string]any); ok {
			delete(notes, client.LastApplied)
		}
		tree["metadata"] = kept
	}
	if tree["kind"] == "Secret" {
		tree["data"] = hideSecrets(tree["data"])
	}
	addValues(all, "", tree)
	return all, nil
}

// volatileFields are fields of a status that change when others do.
var volatileFields = []string{
	"ts", "ver", "for", "basedOn", "desiredVer", "origin", "lastTransitionTime", "lastSeen", "observedGeneration", "reason", "message",
}

func addValues(all map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		ours := strings.HasPrefix(path, "status") && path != "status.twin" // elsewhere users choose names
		for field, below := range v {
			if ours && slices.Contains(volatileFields, field) {
				continue
			}
			addValues(all, strings.TrimPrefix(path+"."+field, "."), below)
		}
	case []any:
		for i, below := range v {
			name := fmt.Sprint(i)
			if m, ok := below.(map[string]any); ok {
				for _, key := range []string{"name", "type"} {
					if text, ok := m[key].(string); ok {
						name = text
					}
				}
			}
			addValues(all, path+"."+name, below)
		}
	default:
		all[path] = fmt.Sprint(v)
	}
}

const mostChangesPrinted = 4 // of one object that are printed

// describeChanges lists the values that differ.
func describeChanges(before, after map[string]string) string {
	var all []string
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		old, had := before[path]
		now, has := after[path]
		if old == now && had == has {
			continue
		}
		show := func(value string, there bool) string {
			if !there {
				return "–"
			}
			return printableText(value, 40)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, "status.twin."), ".value")
		all = append(all, printableText(name, 80)+": "+show(old, had)+" → "+show(now, has))
	}
	if len(all) > mostChangesPrinted {
		all = append(all[:mostChangesPrinted], fmt.Sprintf("and %d more", len(all)-mostChangesPrinted))
	}
	return strings.Join(all, ", ")
}

// lastValues holds the values of objects as they were printed last.
type lastValues map[string]map[string]string

// changeNote is the last column of a watch: when the object changed, and what. changes is false if nothing did that leaves has.
func (h lastValues) changeNote(kind string, o client.Object, now time.Time) (note string, changes bool) {
	key := o.Metadata.Namespace + "/" + o.Metadata.Name
	at := now.Format(time.TimeOnly)
	if kind == "DELETED" {
		delete(h, key)
		return at + " (deleted)", true
	}
	next, err := valuesByPath(o)
	if err != nil {
		return at, true
	}
	before, known := h[key]
	h[key] = next
	if !known {
		return at + " (new)", true
	}
	what := describeChanges(before, next)
	return strings.TrimSpace(at + " " + what), what != ""
}

func newDescribe() *cobra.Command {
	var h hub
	cmd := &cobra.Command{
		Use:   "describe KIND NAME…",
		Short: "Show all about objects",
		Long: `Show an object for people to read: its spec, status, twin and conditions, and the events about it.

` + exitCodes,
		Example:           "  edgebus describe device lamp\n  edgebus describe node/n1 devicemodel/dimmable-lamp",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeObjects(&h, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return describe(cmd, &h, args) },
	}
	h.flags(cmd)
	return cmd
}

func describe(cmd *cobra.Command, h *hub, args []string) error {
	targets, err := parseTargets(cmd.Context(), h, args)
	if err != nil {
		return err
	}
	for i, t := range targets {
		if t.name == "" {
			return exitErrorf(misused, "the name of a %s is missing", t.kind.Singular)
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
			h.printOffline(cmd.Context(), cmd.ErrOrStderr(), []string{of.Spec.NodeName})
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
		fmt.Fprintf(d.out, "%-13s %s\n", name+":", printableText(value, 200))
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
	text := formatAge(d.now.Sub(t))
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
	text, err := yamlText(v)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s:\n", name)
	for line := range strings.Lines(text) {
		fmt.Fprintf(d.out, "  %s\n", printableText(strings.TrimRight(line, "\n"), 500))
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
		if err := d.table("Twin", twinRows(s.Status.Twin, nil, d.now)); err != nil {
			return err
		}
	}
	if len(s.Status.Conditions) == 0 {
		return nil
	}
	rows := [][]string{{"TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range s.Status.Conditions {
		rows = append(rows, []string{c.Type, c.Status, formatSince(d.now, c.LastTransitionTime), c.Reason, printableText(c.Message, 300)})
	}
	return d.table("Conditions", rows)
}

func formatSince(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return formatAge(now.Sub(t))
}

func (d objectDescription) table(name string, rows [][]string) error {
	fmt.Fprintf(d.out, "%s:\n", name)
	for i := range rows {
		rows[i][0] = "  " + rows[i][0]
	}
	return new(alignedRows).write(d.out, rows)
}

// kubernetesEvent is an Event of either of Kubernetes' forms.
type kubernetesEvent struct {
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
func (d objectDescription) events(ctx context.Context, h *hub, o client.Object) error {
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
		rows = append(rows, []string{e.Type, e.Reason, formatSince(d.now, e.lastSeen()), fmt.Sprint(max(1, e.Count)), printableText(e.Message+e.Note, 300)})
	}
	return d.table("Events", rows)
}
