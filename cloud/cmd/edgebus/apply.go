package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// applyOptions are the flags of edgebus apply.
type applyOptions struct {
	hub
	files     []string
	recursive bool
	dryRun    bool
	quiet     bool
	out, errs io.Writer
}

func newApply() *cobra.Command {
	o := &applyOptions{}
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIRECTORY|-",
		Short: "Create or change objects as manifests say",
		Long: `Create the objects that manifests describe, or change those that exist. What a manifest
doesn't mention is left alone, such as values that were set by MQTT; what an earlier apply
mentioned, and this one doesn't, is removed. kubectl apply can be used on the same objects.

Manifests are YAML or JSON, with any number of documents in a file. Models are applied before
the devices that need them, whatever the order. One that fails doesn't stop the others: it is
named with its file and document, and the exit code is not 0.

` + exitCodes + `
It is 1 if failures are of several kinds.`,
		Example: `  edgebus apply -f lamp.yaml
  edgebus apply -R -f plant/ --dry-run
  edgebus export | edgebus apply -f - --context other`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exitErrorf(misused, "manifests are given with -f: edgebus apply -f %s", strings.Join(args, " -f "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "include subdirectories")
	f.BoolVar(&o.dryRun, "dry-run", false, "have the hub check everything, and change nothing")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only failures")
	return cmd
}

func (o *applyOptions) run(cmd *cobra.Command) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if len(o.files) == 0 {
		return exitErrorf(misused, "nothing says what to apply: -f FILE, -f DIRECTORY, or -f - for standard input")
	}
	manifests, err := readManifests(o.files, o.recursive, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if _, err := o.Kinds(cmd.Context()); err != nil { // once, rather than for each
		return err
	}
	_, interactive := terminalSize(o.out)
	r := &applyReport{options: o, total: len(manifests), count: interactive, outcomes: map[client.Outcome]int{}}
	o.Warn = r.warnings.add
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	r.stop = cancel
	for _, group := range groupByRank(manifests, false) {
		inParallel(group, func(m manifest) applyResult { return o.apply(ctx, m) }, r.add)
	}
	err = r.printSum()
	if r.left > 0 {
		err = errors.Join(cmd.Context().Err(), err)
	}
	return err
}

// applyResult is the outcome for a manifest.
type applyResult struct {
	manifest
	label   string
	outcome client.Outcome
}

func (o *applyOptions) apply(ctx context.Context, m manifest) applyResult {
	r := applyResult{manifest: m}
	if r.err != nil {
		return r
	}
	var k client.Kind
	if k, r.err = o.KindOf(ctx, m.object.TypeMeta); r.err != nil {
		return r
	}
	r.label = objectLabel(k, m.object.Metadata.Name)
	var namespace string
	if namespace, r.err = manifestNamespace(&o.hub, k, m.object); r.err == nil {
		r.outcome, r.err = o.Apply(ctx, k, namespace, m.object, client.WriteOptions{DryRun: o.dryRun, Strict: true})
	}
	return r
}

const parallelRequests = 8 // requests; the hub commits those together that come at once

// inParallel calls do for all, parallelRequests at a time, and report in their order.
func inParallel(all []manifest, do func(manifest) applyResult, report func(applyResult)) {
	done := make([]chan applyResult, len(all))
	for i := range done {
		done[i] = make(chan applyResult, 1)
	}
	turns := make(chan struct{}, parallelRequests)
	go func() {
		for i, m := range all {
			turns <- struct{}{}
			go func() {
				done[i] <- do(m)
				<-turns
			}()
		}
	}()
	for _, d := range done {
		report(<-d)
	}
}

// applyReport prints the outcomes, one by one and in sum.
type applyReport struct {
	options  *applyOptions
	total    int
	count    bool // print which of how many it is
	done     int
	outcomes map[client.Outcome]int
	stop     func() // ends requests: the hub is unreachable
	stopped  bool
	left     int // requests without an answer after that
	warnings warningSet
	failureCount
}

// warningSet collects what the hub warns of, each text once, until it is shown.
type warningSet struct {
	mu   sync.Mutex
	said map[string]bool
	more []string
}

func (w *warningSet) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said == nil {
		w.said = map[string]bool{}
	}
	if !w.said[text] {
		w.said[text] = true
		w.more = append(w.more, text)
	}
}

func (w *warningSet) printNew(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.more {
		printWarning(to, text)
	}
	w.more = nil
}

func (r *applyReport) add(got applyResult) {
	r.warnings.printNew(r.options.errs)
	r.done++
	unanswered := got.err != nil && exitCodeOf(got.err) == unreachable
	if errors.Is(got.err, context.Canceled) || unanswered && r.stopped {
		r.left++ // the reason was printed for the first
		return
	}
	if unanswered {
		r.stopped = true
		r.stop()
	}
	if got.err != nil {
		r.addFailure(r.options.errs, got.manifest.String()+": ", got.err)
		return
	}
	r.outcomes[got.outcome]++
	if r.options.quiet {
		return
	}
	if r.count && r.total > 1 {
		fmt.Fprintf(r.options.out, "[%*d/%d] ", len(fmt.Sprint(r.total)), r.done, r.total)
	}
	fmt.Fprintf(r.options.out, "%s %s%s\n", got.label, got.outcome, r.dryRunSuffix())
}

func (r *applyReport) dryRunSuffix() string {
	if r.options.dryRun {
		return " (dry run)"
	}
	return ""
}

// printSum prints the sum, unless it is that of one success.
func (r *applyReport) printSum() error {
	if r.failures+r.left == 0 && (r.total == 1 || r.options.quiet) {
		return nil
	}
	var parts []string
	for _, o := range []client.Outcome{client.Created, client.Configured, client.Unchanged} {
		if n := r.outcomes[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, o))
		}
	}
	if r.failures > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", r.failures))
	}
	if r.left > 0 {
		parts = append(parts, fmt.Sprintf("%d without an answer", r.left))
	}
	fmt.Fprintf(r.options.errs, "%s: %s%s\n", pluralise(r.total, "object"), strings.Join(parts, ", "), r.dryRunSuffix())
	return r.err()
}

// applyRanks is the order in which kinds are applied; others have rank 0. Deleting goes the other way. The hub accepts
// objects in any order, but Devices work at once if what they need exists.
var applyRanks = map[string]int{"Namespace": -4, "Secret": -3, "ConfigMap": -3, "DeviceModel": -2, "Repository": -2, "Node": -1, "Device": 1}

// manifest is an object in a file.
type manifest struct {
	object client.Object
	where  string // file and document
	err    error  // why it can't be read
}

func (m manifest) String() string {
	if m.object.Kind == "" {
		return m.where
	}
	return fmt.Sprintf("%s (%s %s)", m.where, m.object.Kind, m.object.Metadata.Name)
}

// readManifests reads files, directories and - for standard input. A file that can't be read is an error; a document
// that is no object is a manifest with an error.
func readManifests(paths []string, recursive bool, stdin io.Reader) (all []manifest, err error) {
	for _, path := range paths {
		if strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://") {
			return nil, exitErrorf(misused, "%s: manifests are files, directories or - for standard input; get it with curl and pipe it here", path)
		}
		if path == "-" {
			text, err := io.ReadAll(stdin)
			if err != nil {
				return nil, err
			}
			all = append(all, parseManifests("standard input", text)...)
			continue
		}
		files, err := manifestFiles(path, recursive)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			all = append(all, parseManifests(file, text)...)
		}
	}
	if len(all) == 0 {
		return nil, exitErrorf(misused, "there are no objects in %s", strings.Join(paths, ", "))
	}
	return all, nil
}

// manifestFiles are the files that a path means.
func manifestFiles(path string, recursive bool) (files []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != path && !recursive:
			return fs.SkipDir
		case !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)):
			files = append(files, file)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		advice := ""
		if !recursive {
			advice = "; -R includes its subdirectories"
		}
		err = exitErrorf(misused, "there are no .yaml, .yml or .json files in %s%s", path, advice)
	}
	return files, err
}

func parseManifests(file string, text []byte) (all []manifest) {
	documents := client.Documents(text)
	for _, d := range documents {
		where := file
		if len(documents) > 1 {
			where = fmt.Sprintf("%s document %d", file, d.Number)
		}
		if d.Err != nil {
			all = append(all, manifest{where: where, err: d.Err})
		}
		for _, o := range d.Objects {
			all = append(all, manifest{object: o, where: where})
		}
	}
	return all
}

// groupByRank sorts manifests by rank, and returns a group for each rank.
func groupByRank(all []manifest, backwards bool) (groups [][]manifest) {
	sign := 1
	if backwards {
		sign = -1
	}
	slices.SortStableFunc(all, func(a, b manifest) int {
		return sign * cmp.Compare(applyRanks[a.object.Kind], applyRanks[b.object.Kind])
	})
	for i, m := range all {
		if i == 0 || applyRanks[all[i-1].object.Kind] != applyRanks[m.object.Kind] {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], m)
	}
	return groups
}

// manifestNamespace is the namespace of a manifest's object.
func manifestNamespace(h *hub, k client.Kind, o client.Object) (namespace string, err error) {
	if !k.Namespaced {
		return "", nil
	}
	if own := o.Metadata.Namespace; own != "" {
		if h.namespaceGiven && own != h.namespace {
			return "", exitErrorf(misused, "it is in namespace %s, and --namespace says %s", own, h.namespace)
		}
		return own, nil
	}
	return h.namespace, nil
}

// deleteOptions are the flags of edgebus delete.
type deleteOptions struct {
	hub
	files     []string
	recursive bool
	labels    string
	dryRun    bool
	missingOK bool
	force     bool
	wait      bool
	out, errs io.Writer
}

func newDelete() *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use:   "delete KIND NAME… | -f FILE",
		Short: "Delete objects",
		Long: `Delete objects by name, by label, or those that manifests describe. A device's topics are cleared on
its node as well. An object that others need, such as a model that has devices, is deleted with the last of them.

` + exitCodes,
		Example: `  edgebus delete device lamp
  edgebus delete devices -l room=hall
  edgebus get devices -A -o name | xargs edgebus delete
  edgebus delete -f plant/ -R --ignore-not-found
  edgebus delete devicemodel dimmable-lamp --wait --timeout 1m`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "with -f: include subdirectories")
	f.StringVarP(&o.labels, "selector", "l", "", "objects with these labels: room=hall")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be deleted, and change nothing")
	f.BoolVar(&o.missingOK, "ignore-not-found", false, "an object that doesn't exist is not a failure")
	f.BoolVar(&o.force, "force", false, "delete a TemplateVersion that nodes have, or that a rollout is undone with, too")
	f.BoolVar(&o.wait, "wait", false, "wait until they no longer exist")
	f.Lookup("timeout").Usage = waitUsage
	return cmd
}

// deletion is an object that is to be deleted.
type deletion struct {
	kind            client.Kind
	namespace, name string
	where           string // of its manifest, if it has one
}

func (o *deleteOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if _, typed := terminalSize(cmd.InOrStdin()); len(o.files)+len(args) == 0 && o.labels == "" && !typed {
		fmt.Fprintln(o.errs, "nothing to delete") // as from xargs without names
		return nil
	}
	if (len(o.files) > 0) == (len(args) > 0) {
		return exitErrorf(misused, "nothing says what to delete: KIND NAME…, KIND -l LABELS, or -f FILE")
	}
	ctx := cmd.Context()
	var count failureCount
	list, err := o.namedObjects(ctx, args)
	if len(o.files) > 0 {
		list, err = o.describedObjects(ctx, cmd.InOrStdin(), &count)
	}
	if err != nil {
		return err
	}
	for i, d := range list {
		if err := o.delete(ctx, d); err != nil {
			if len(list) == 1 && d.where == "" {
				return err
			}
			count.addFailure(o.errs, d.where, err)
			if interrupted(ctx, o.errs, len(list)-i-1) {
				break
			}
		}
	}
	return count.err()
}

// namedObjects are the objects that the command line names or selects.
func (o *deleteOptions) namedObjects(ctx context.Context, args []string) (list []deletion, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	targets, err := parseTargets(ctx, &o.hub, args)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		switch {
		case (t.name == "") == (o.labels == ""):
			return nil, exitErrorf(misused, "say which %s: by name, or with -l; to delete them all, edgebus get %s -o name | xargs edgebus delete", t.kind.Plural, t.kind.Plural)
		case t.name != "":
			list = append(list, deletion{kind: t.kind, namespace: t.namespace, name: t.name})
		default:
			before := len(list)
			_, err := o.List(ctx, t.kind, client.ListOptions{Namespace: o.namespaceOf(t.kind), Labels: o.labels}, func(page []client.Object) error {
				for _, got := range page {
					list = append(list, deletion{kind: t.kind, namespace: got.Metadata.Namespace, name: got.Metadata.Name})
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			if len(list) == before {
				fmt.Fprintf(o.errs, "no %s that %s selects\n", t.kind.Plural, o.labels)
			}
		}
	}
	return list, nil
}

// describedObjects are the objects of manifests, devices before their models.
func (o *deleteOptions) describedObjects(ctx context.Context, stdin io.Reader, count *failureCount) (list []deletion, err error) {
	manifests, err := readManifests(o.files, o.recursive, stdin)
	if err != nil {
		return nil, err
	}
	for _, group := range groupByRank(manifests, true) {
		for _, m := range group {
			d := deletion{name: m.object.Metadata.Name, where: m.String() + ": "}
			err := m.err
			if err == nil {
				d.kind, err = o.KindOf(ctx, m.object.TypeMeta)
			}
			if err == nil {
				d.namespace, err = manifestNamespace(&o.hub, d.kind, m.object)
			}
			if errors.Is(err, context.Canceled) || exitCodeOf(err) == unreachable {
				return nil, err // once, rather than for each
			}
			if err != nil {
				count.addFailure(o.errs, d.where, err)
				continue
			}
			list = append(list, d)
		}
	}
	return list, nil
}

func (o *deleteOptions) delete(ctx context.Context, d deletion) error {
	left, err := o.Delete(ctx, d.kind, d.namespace, d.name, client.WriteOptions{DryRun: o.dryRun, Force: o.force})
	switch {
	case errors.Is(err, resource.NotFound) && o.missingOK:
		return nil
	case err != nil:
		return err
	case o.dryRun:
		fmt.Fprintf(o.out, "%s deleted (dry run)\n", objectLabel(d.kind, d.name))
		return nil
	case left == nil:
		fmt.Fprintf(o.out, "%s deleted\n", objectLabel(d.kind, d.name))
		return nil
	}
	fmt.Fprintf(o.out, "%s is being deleted, and waits for its finalizers: %s\n", objectLabel(d.kind, d.name), strings.Join(left.Metadata.Finalizers, ", "))
	if !o.wait {
		return nil
	}
	return o.awaitDeletion(ctx, d, left.Metadata)
}

var errStopWatch = errors.New("seen")

// awaitDeletion waits until an object no longer exists.
func (o *deleteOptions) awaitDeletion(ctx context.Context, d deletion, was resource.Meta) error {
	limit := cmp.Or(o.timeout, waitTime)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	which := client.ListOptions{Namespace: d.namespace, Fields: "metadata.name=" + d.name}
	defer showProgress(o.errs, limit, func() string { return objectLabel(d.kind, d.name) + " to go" })()
	var err error
	for rev := was.ResourceVersion; err == nil; {
		err = o.Watch(ctx, d.kind, which, rev, func(e client.Event) error {
			if e.Type == "DELETED" {
				return errStopWatch
			}
			return nil
		})
		if !errors.Is(err, resource.Gone) {
			break
		}
		var now client.Object
		now, err = o.Object(ctx, d.kind, d.namespace, d.name)
		if errors.Is(err, resource.NotFound) || err == nil && now.Metadata.UID != was.UID {
			err = errStopWatch
		}
		rev = now.Metadata.ResourceVersion
	}
	switch {
	case errors.Is(err, errStopWatch):
		fmt.Fprintf(o.out, "%s deleted\n", objectLabel(d.kind, d.name))
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return exitErrorf(late, "%s is still there after %s", objectLabel(d.kind, d.name), limit)
	}
	return exitOfTimeout(ctx, err)
}

// exportOptions are the flags of edgebus export.
type exportOptions struct {
	hub
	labels string
	dir    string
	errs   io.Writer
}

func newExport() *cobra.Command {
	o := &exportOptions{}
	cmd := &cobra.Command{
		Use:   "export [KIND…]",
		Short: "Write all objects as manifests",
		Long: `Write the hub's objects as manifests: all kinds of all namespaces, or those that are named.
edgebus apply makes an empty hub the same as this one from them, and they can be kept in git.

What the hub makes is left out: status, versions, identities, events, objects that others own (such as a
Fleet's TemplateVersions, which their owners create again), and objects that are being deleted. So
are messages, sessions, and what nodes reported; edgebus backup has all of that. Secrets are in
the manifests in clear, and other objects may have passwords, too: keep them safe. Only you
can read the files that --directory writes. Kinds that you may not read are left out with a message, unless you named them.

An annotation says what was applied last, as kubectl keeps it. So a hub that is restored from an export knows
which values came from manifests and which were set otherwise, and applying your own manifests has the same effect
there. kubectl apply of an export takes all of its values as the manifest's.

` + exitCodes,
		Example: `  edgebus export > monday.yaml
  edgebus export -d plant && edgebus apply -R -f plant --context other
  edgebus export devices -n hall -l floor=2`,
		ValidArgsFunction: completeObjects(&o.hub, 1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.labels, "selector", "l", "", "only objects with these labels")
	f.StringVarP(&o.dir, "directory", "d", "", "write a file for each object into this directory, which is new or empty")
	_ = cmd.MarkFlagDirname("directory")
	return cmd
}

func (o *exportOptions) run(cmd *cobra.Command, args []string) error {
	o.errs = cmd.ErrOrStderr()
	kinds, err := o.exportedKinds(cmd.Context(), args)
	if err != nil {
		return err
	}
	write := func(_ client.Kind, _ client.Object, text string) error {
		_, err := io.WriteString(cmd.OutOrStdout(), "---\n"+text)
		return err
	}
	if o.dir != "" {
		if err := emptyDirectory(o.dir); err != nil {
			return err
		}
		write = o.writeFile
	}
	total := 0
	for _, k := range kinds {
		n, err := o.exportKind(cmd.Context(), k, write)
		if len(args) == 0 && n == 0 && errors.Is(err, resource.Forbidden) {
			fmt.Fprintf(o.errs, "edgebus: %s are left out: %s\n", k.Plural, printableText(err.Error(), 500))
			continue
		}
		if err != nil {
			return err
		}
		total += n
	}
	if o.dir != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "%s written to %s\n", pluralise(total, "object"), o.dir)
	}
	return nil
}

// exportedKinds are the kinds that are meant, in the order in which they can be applied.
func (o *exportOptions) exportedKinds(ctx context.Context, args []string) (kinds []client.Kind, err error) {
	for _, name := range args {
		k, err := o.Kind(ctx, name)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, k)
	}
	if len(args) == 0 {
		all, err := o.Kinds(ctx)
		if err != nil {
			return nil, err
		}
		for _, k := range client.Canonical(all) {
			if k.Can("list") && k.Can("create") && k.Name != "Event" {
				kinds = append(kinds, k)
			}
		}
	}
	slices.SortStableFunc(kinds, func(a, b client.Kind) int { return cmp.Compare(applyRanks[a.Name], applyRanks[b.Name]) })
	return kinds, nil
}

// exportKind writes all objects of a kind.
func (o *exportOptions) exportKind(ctx context.Context, k client.Kind, write func(client.Kind, client.Object, string) error) (n int, err error) {
	which := client.ListOptions{Labels: o.labels}
	if o.namespaceGiven {
		which.Namespace = o.namespaceOf(k)
	}
	_, err = o.List(ctx, k, which, func(page []client.Object) error {
		for _, got := range page {
			if got.Metadata.DeletionTimestamp != nil {
				fmt.Fprintf(o.errs, "edgebus: %s is being deleted, and left out\n", objectLabel(k, got.Metadata.Name))
				continue
			}
			if isOwned(got.Metadata) && k.Name != resource.KindNode { // a Node exists without its Fleet
				continue
			}
			text, err := exportText(got)
			if err == nil {
				err = write(k, got, text)
			}
			if err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

// isOwned is whether another object has created this one, and would create it again.
func isOwned(m resource.Meta) bool {
	return m.Owner != "" || len(m.OwnerReferences) > 0
}

// exportText is an object as a manifest for any hub.
func exportText(o client.Object) (string, error) {
	tree, err := o.Manifest()
	if err != nil {
		return "", err
	}
	delete(tree, "status")
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "resourceVersion")
		delete(meta, "generateName")
		delete(meta, "owner") // its owner sets it again
		delete(meta, "ownerReferences")
		notes, _ := meta["annotations"].(map[string]any)
		if notes == nil {
			notes = map[string]any{}
			meta["annotations"] = notes
		}
		notes[client.LastApplied] = o.Metadata.Annotations[client.LastApplied] // empty where nothing was applied
	}
	tree["apiVersion"], tree["kind"] = o.APIVersion, o.Kind
	return yamlText(tree)
}

// emptyDirectory creates a directory, or checks that it is empty.
func emptyDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = exitErrorf(misused, "%s is not empty: its files would mix with the exported ones", dir)
	}
	return err
}

// writeFile writes an object into the file KIND/NAMESPACE/NAME.yaml.
func (o *exportOptions) writeFile(k client.Kind, got client.Object, text string) error {
	file := filepath.Join(o.dir, k.Plural, got.Metadata.Namespace, got.Metadata.Name+".yaml")
	if name := got.Metadata.Name + ".yaml"; name != filepath.Base(name) || !filepath.IsLocal(filepath.Join(k.Plural, got.Metadata.Namespace, name)) {
		return fmt.Errorf("%q can't be a file's name", got.Metadata.Name)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600) // some have credentials: Secrets, Repositories, Devices
}
