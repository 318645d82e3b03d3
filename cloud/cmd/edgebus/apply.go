package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
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
		Short: "Make the hub's objects what manifests say",
		Long: `Create the objects that manifests describe, or change those that are there. What a manifest
doesn't mention is left alone, such as values that somebody set by MQTT; what an earlier apply
mentioned, and this one doesn't, is taken away. kubectl apply and this may take turns.

Manifests are YAML or JSON, with any number of documents in a file. Models are applied before
the devices that need them, whatever the order. One that fails doesn't stop the others: it is
named with its file and document, and the exit code says that there was one.

` + exitCodes + `
Of several failures that are not alike it is 1.`,
		Example: `  edgebus apply -f lamp.yaml
  edgebus apply -R -f plant/ --dry-run
  edgebus export | edgebus apply -f - --context other`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return withCode(misused, "manifests are given with -f: edgebus apply -f %s", strings.Join(args, " -f "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "directories in directories, too")
	f.BoolVar(&o.dryRun, "dry-run", false, "have the hub check everything, and change nothing")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "say only what fails")
	return cmd
}

func (o *applyOptions) run(cmd *cobra.Command) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if len(o.files) == 0 {
		return withCode(misused, "say what to apply: -f FILE, -f DIRECTORY, or -f - for standard input")
	}
	manifests, err := readManifests(o.files, o.recursive, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if err := o.open(cmd); err != nil {
		return err
	}
	if _, err := o.Kinds(cmd.Context()); err != nil { // once, rather than for each
		return err
	}
	_, interactive := terminal(o.out)
	r := &report{options: o, total: len(manifests), count: interactive, outcomes: map[client.Outcome]int{}}
	o.Warn = r.warnings.add
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	r.stop = cancel
	for _, group := range inOrder(manifests, false) {
		inParallel(group, func(m manifest) result { return o.apply(ctx, m) }, r.add)
	}
	err = r.end()
	if r.left > 0 {
		err = errors.Join(cmd.Context().Err(), err)
	}
	return err
}

// result is what became of a manifest.
type result struct {
	manifest
	label   string
	outcome client.Outcome
}

func (o *applyOptions) apply(ctx context.Context, m manifest) result {
	r := result{manifest: m}
	if r.err != nil {
		return r
	}
	var k client.Kind
	if k, r.err = o.KindOf(ctx, m.object.TypeMeta); r.err != nil {
		return r
	}
	r.label = label(k, m.object.Metadata.Name)
	var namespace string
	if namespace, r.err = o.home(k, m.object); r.err == nil {
		r.outcome, r.err = o.Apply(ctx, k, namespace, m.object, client.WriteOptions{DryRun: o.dryRun, Strict: true})
	}
	return r
}

const atOnce = 8 // the hub shares commits between those who write at once

// inParallel does something to all, some at once, and reports results in their order.
func inParallel(all []manifest, do func(manifest) result, report func(result)) {
	done := make([]chan result, len(all))
	for i := range done {
		done[i] = make(chan result, 1)
	}
	turns := make(chan struct{}, atOnce)
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

// report says what became of manifests, one by one and at the end.
type report struct {
	options  *applyOptions
	total    int
	count    bool // say how many of how many
	done     int
	outcomes map[client.Outcome]int
	stop     func() // there is no use in going on
	stopped  bool
	left     int // without an answer since
	warnings warnings
	tally
}

// warnings are what the hub warned of, the same once, until they are shown.
type warnings struct {
	mu   sync.Mutex
	said map[string]bool
	more []string
}

func (w *warnings) add(text string) {
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

func (w *warnings) show(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.more {
		warn(to, text)
	}
	w.more = nil
}

func (r *report) add(got result) {
	r.warnings.show(r.options.errs)
	r.done++
	unanswered := got.err != nil && codeOf(got.err) == unreachable
	if errors.Is(got.err, context.Canceled) || unanswered && r.stopped {
		r.left++ // it was told why
		return
	}
	if unanswered {
		r.stopped = true
		r.stop()
	}
	if got.err != nil {
		r.fail(got.err)
		fmt.Fprintf(r.options.errs, "edgebus: %s: %v\n", got.manifest, got.err)
		return
	}
	r.outcomes[got.outcome]++
	if r.options.quiet {
		return
	}
	if r.count && r.total > 1 {
		fmt.Fprintf(r.options.out, "[%*d/%d] ", len(fmt.Sprint(r.total)), r.done, r.total)
	}
	fmt.Fprintf(r.options.out, "%s %s%s\n", got.label, got.outcome, r.dry())
}

func (r *report) dry() string {
	if r.options.dryRun {
		return " (dry run)"
	}
	return ""
}

// end sums up what was more than one, or failed.
func (r *report) end() error {
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
	fmt.Fprintf(r.options.errs, "%s: %s%s\n", plural(r.total, "object"), strings.Join(parts, ", "), r.dry())
	return r.err()
}
