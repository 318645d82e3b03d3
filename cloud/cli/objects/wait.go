// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// waitOptions are the flags of edgebus wait.
type waitOptions struct {
	access.Hub
	objectSelection
	condition string
	once      bool // look once, and don't wait
	out, errs io.Writer
}

func newWait() *cobra.Command {
	o := &waitOptions{}
	cmd := &cobra.Command{
		Use:   "wait KIND NAME… --for CONDITION",
		Short: "Wait until objects have a condition or a value, exist, or are deleted",
		Long: `Wait until each of the objects has what --for says:
  condition=TYPE            a condition of that type is True (of this generation of the object)
  condition=TYPE=STATUS     … or has another status
  jsonpath='{.PATH}'        there is a value
  jsonpath='{.PATH}'=VALUE  … and it is this one
  create                    it exists
  delete                    it exists no longer
Without --timeout it waits for 30s. With --timeout 0s it looks once.

` + exitcode.Help,
		Example: `  edgebus wait device/lamp --for condition=InSync
  edgebus wait device lamp --for jsonpath='{.status.twin.power.reported.value}'=ON --timeout 1m
  edgebus wait nodes --all --for jsonpath='{.status.state}'=online
  edgebus wait device/lamp --for delete`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.Hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.Hub.Register(cmd)
	o.register(cmd)
	cmd.Flags().StringVar(&o.condition, "for", "", "what to wait for")
	cmd.Flags().Lookup("timeout").Usage = "end after this time, 0s: look once (default: 30s)"
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"condition=", "jsonpath=", "create", "delete"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return cmd
}

// waitGoal is what is waited for.
type waitGoal struct {
	text             string
	absent, creation bool                                    // the object is gone; it exists
	met              func(tree map[string]any) (bool, error) // the object has it
}

func (o *waitOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	g, err := parseGoal(o.condition)
	if err != nil {
		return err
	}
	ctx, limit := cmd.Context(), o.Timeout
	if o.once = limit == 0 && cmd.Flags().Changed("timeout"); !o.once && limit == 0 {
		limit = access.WaitTime
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	all, err := o.refs(ctx, &o.Hub, args, cmd.InOrStdin())
	if err != nil {
		return exitcode.OfTimeout(ctx, err)
	}
	if len(all) == 0 && !g.absent {
		return exitcode.Errorf(exitcode.NotFound, "no object is selected, so there is nothing to wait for")
	}
	var count exitcode.Failures
	for i, ref := range all {
		if err := o.await(ctx, ref, g, limit); err != nil {
			if len(all) == 1 {
				return err
			}
			count.AddFailure(o.errs, "", err)
			if exitcode.Interrupted(cmd.Context(), o.errs, len(all)-i-1) {
				break
			}
		}
	}
	return count.Err()
}

// await waits for one object.
func (o *waitOptions) await(ctx context.Context, ref objectRef, g waitGoal, limit time.Duration) error {
	label := printer.Label(ref.kind, ref.name)
	stop := func() {}
	if !o.once {
		stop = terminal.ShowProgress(o.errs, limit, func() string { return label + " " + g.text })
	}
	err := o.follow(ctx, ref, g)
	stop()
	switch {
	case errors.Is(err, access.ErrStopWatch):
		fmt.Fprintf(o.out, "%s %s\n", label, g.text)
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return exitcode.Errorf(exitcode.TimedOut, "%s: not %q after %s", label, g.text, limit)
	}
	return exitcode.OfTimeout(ctx, err)
}

// follow returns access.ErrStopWatch when an object has reached the goal.
func (o *waitOptions) follow(ctx context.Context, ref objectRef, g waitGoal) error {
	which := client.ListOptions{Namespace: ref.namespace, Fields: "metadata.name=" + ref.name}
	uid := ""
	for {
		found := false
		rev, err := o.List(ctx, ref.kind, which, func(page []client.Object) error {
			for _, got := range page {
				found = true
				if uid == "" {
					uid = got.Metadata.UID
				}
				if err := g.check(got, uid); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case !found && g.absent:
			return access.ErrStopWatch
		case !found && !g.creation: // the answer for one object says which may have been meant
			_, err := o.Object(ctx, ref.kind, ref.namespace, ref.name)
			return err
		case o.once:
			return exitcode.Errorf(exitcode.Failed, "%s: not %q", printer.Label(ref.kind, ref.name), g.text)
		}
		err = o.Watch(ctx, ref.kind, which, rev, func(e client.Event) error {
			switch {
			case e.Type == "DELETED" && g.absent:
				return access.ErrStopWatch
			case e.Type == "DELETED" && !g.creation:
				return resource.Errorf(resource.NotFound, "", "%s was deleted meanwhile", printer.Label(ref.kind, ref.name))
			case e.Type == "DELETED":
				return nil
			}
			return g.check(e.Object, uid)
		})
		if !errors.Is(err, resource.Gone) {
			return err
		}
	}
}

// check returns access.ErrStopWatch if an object has reached the goal. With another UID than the one that was there first, that one is gone.
func (g waitGoal) check(o client.Object, uid string) error {
	if g.absent {
		if uid != "" && o.Metadata.UID != uid {
			return access.ErrStopWatch
		}
		return nil
	}
	if g.creation {
		return access.ErrStopWatch
	}
	tree, err := o.Tree()
	if err != nil {
		return err
	}
	met, err := g.met(tree)
	if met && err == nil {
		err = access.ErrStopWatch
	}
	return err
}

const usageGoal = "--for is condition=TYPE, condition=TYPE=STATUS, jsonpath='{.PATH}', jsonpath='{.PATH}'=VALUE, create or delete"

func parseGoal(text string) (waitGoal, error) {
	kind, rest, _ := strings.Cut(text, "=")
	switch strings.ToLower(kind) {
	case "delete":
		return waitGoal{text: "deleted", absent: true}, nil
	case "create":
		return waitGoal{text: "created", creation: true}, nil
	case "condition":
		if rest != "" {
			name, status, given := strings.Cut(rest, "=")
			if !given {
				status = "True"
			}
			return waitGoal{text: "condition met", met: func(tree map[string]any) (bool, error) { return hasCondition(tree, name, status), nil }}, nil
		}
	case "jsonpath":
		if rest != "" {
			return pathGoal(rest)
		}
	}
	return waitGoal{}, exitcode.Errorf(exitcode.Misused, "--for %q: %s", text, usageGoal)
}

// hasCondition reports whether an object has a condition of this status, of the object's present generation.
func hasCondition(tree map[string]any, name, status string) bool {
	var o struct {
		Metadata struct {
			Generation int64 `json:"generation"`
		} `json:"metadata"`
		Status struct {
			ObservedGeneration *int64 `json:"observedGeneration"`
			Conditions         []struct {
				Type               string `json:"type"`
				Status             string `json:"status"`
				ObservedGeneration *int64 `json:"observedGeneration"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if raw, err := json.Marshal(tree); err != nil || json.Unmarshal(raw, &o) != nil {
		return false
	}
	for _, c := range o.Status.Conditions {
		if !strings.EqualFold(c.Type, name) {
			continue
		}
		seen := c.ObservedGeneration
		if seen == nil {
			seen = o.Status.ObservedGeneration
		}
		return (seen == nil || *seen >= o.Metadata.Generation) && strings.EqualFold(c.Status, status)
	}
	return false
}

const shellQuotes = `'"` // that a shell has left

// pathGoal is the goal of jsonpath: '{.PATH}', with or without the braces and quotes, and perhaps =VALUE.
func pathGoal(text string) (waitGoal, error) {
	path, want, compares := strings.Cut(text, "=")
	if end := strings.LastIndex(text, "}"); end >= 0 { // a filter may have an = of its own
		path = text[:end+1]
		want, compares = strings.CutPrefix(strings.TrimLeft(text[end+1:], shellQuotes), "=")
	}
	path, want = strings.Trim(path, shellQuotes), strings.Trim(want, shellQuotes)
	if !strings.HasPrefix(path, "{") {
		path = "{." + strings.TrimPrefix(path, ".") + "}"
	}
	find := jsonpath.New("for").AllowMissingKeys(true)
	if err := find.Parse(path); err != nil || compares && want == "" {
		return waitGoal{}, exitcode.Errorf(exitcode.Misused, "--for jsonpath=%s: it looks like jsonpath='{.status.state}'=online (%v)", text, err)
	}
	return waitGoal{text: "condition met", met: func(tree map[string]any) (bool, error) {
		var have bytes.Buffer
		if err := find.Execute(&have, tree); err != nil {
			return false, exitcode.Errorf(exitcode.Misused, "--for jsonpath=%s: %w", text, err)
		}
		if !compares {
			return have.Len() > 0, nil
		}
		return have.String() == want, nil
	}}, nil
}
