// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
)

// applyOptions are the flags of edgebus apply.
type applyOptions struct {
	access.Hub
	files     []string
	recursive bool
	dryRun    bool
	quiet     bool
	create    bool // only what isn't there
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

` + exitcode.Help + `
It is 1 if failures are of several kinds.`,
		Example: `  edgebus apply -f lamp.yaml
  edgebus apply -R -f plant/ --dry-run
  edgebus export | edgebus apply -f - --context other`,
		Args: onlyManifests,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.register(cmd)
	return cmd
}

// onlyManifests refuses arguments, and says how manifests are given.
func onlyManifests(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exitcode.Errorf(exitcode.Misused, "manifests are given with -f: %s -f %s", cmd.CommandPath(), strings.Join(args, " -f "))
	}
	return nil
}

func newCreate() *cobra.Command {
	o := &applyOptions{create: true}
	cmd := &cobra.Command{
		Use:   "create -f FILE|DIRECTORY|-",
		Short: "Create objects as manifests say, and change none",
		Long: `Create the objects that manifests describe. One that exists already is a failure, and stays as it is:
edgebus apply changes it.

` + exitcode.Help + `
It is 1 if failures are of several kinds.`,
		Example: "  edgebus create -f lamp.yaml\n  edgebus create -R -f plant/ --dry-run",
		Args:    onlyManifests,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.register(cmd)
	return cmd
}

func (o *applyOptions) register(cmd *cobra.Command) {
	o.Register(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "include subdirectories")
	addDryRun(f, &o.dryRun, "have the hub check everything, and change nothing")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only failures")
}

func (o *applyOptions) run(cmd *cobra.Command) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if len(o.files) == 0 {
		return exitcode.Errorf(exitcode.Misused, "nothing says which manifests: -f FILE, -f DIRECTORY, or -f - for standard input")
	}
	manifests, err := readManifests(o.files, o.recursive, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if _, err := o.Kinds(cmd.Context()); err != nil { // once, rather than for each
		return err
	}
	_, interactive := terminal.Size(o.out)
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
	if o.create && errors.Is(r.err, client.ErrGenerateName) {
		r.err = nil
	}
	if r.err != nil {
		return r
	}
	if m.warning != "" {
		o.Warn(fmt.Sprintf("%s: %s: the last value counts", m.where, m.warning))
	}
	var k client.Kind
	if k, r.err = o.KindOf(ctx, m.object.TypeMeta); r.err != nil {
		return r
	}
	r.label = printer.Label(k, m.object.Metadata.Name)
	var namespace string
	if namespace, r.err = manifestNamespace(&o.Hub, k, m.object); r.err != nil {
		return r
	}
	how := client.WriteOptions{DryRun: o.dryRun, Strict: true}
	if !o.create {
		var change client.Change
		change, r.err = o.Apply(ctx, k, namespace, m.object, how)
		r.outcome = change.Outcome
		return r
	}
	tree, err := m.object.Manifest()
	if err != nil {
		r.err = err
		return r
	}
	body, err := json.Marshal(tree)
	if err == nil {
		var made client.Object
		made, err = o.Create(ctx, k, namespace, body, how)
		r.label = printer.Label(k, cmp.Or(m.object.Metadata.Name, made.Metadata.Name))
	}
	r.outcome, r.err = client.Created, err
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
	exitcode.Failures
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
		printer.Warn(to, text)
	}
	w.more = nil
}

func (r *applyReport) add(got applyResult) {
	r.warnings.printNew(r.options.errs)
	r.done++
	unanswered := got.err != nil && exitcode.Of(got.err) == exitcode.Unreachable
	if errors.Is(got.err, context.Canceled) || unanswered && r.stopped {
		r.left++ // the reason was printed for the first
		return
	}
	if unanswered {
		r.stopped = true
		r.stop()
	}
	if got.err != nil {
		r.AddFailure(r.options.errs, got.manifest.String()+": ", got.err)
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
	if r.Count+r.left == 0 && (r.total == 1 || r.options.quiet) {
		return nil
	}
	var parts []string
	for _, o := range []client.Outcome{client.Created, client.Configured, client.Unchanged} {
		if n := r.outcomes[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, o))
		}
	}
	if r.Count > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", r.Count))
	}
	if r.left > 0 {
		parts = append(parts, fmt.Sprintf("%d without an answer", r.left))
	}
	fmt.Fprintf(r.options.errs, "%s: %s%s\n", printer.Plural(r.total, "object"), strings.Join(parts, ", "), r.dryRunSuffix())
	return r.Err()
}
