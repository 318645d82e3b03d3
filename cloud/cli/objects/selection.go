// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/client"
)

// objectSelection says which objects a command is about: by arguments, by manifests, by labels, or all of a kind.
type objectSelection struct {
	files     []string
	recursive bool
	labels    string
	all       bool
}

// registerFiles registers -f and -R.
func (s *objectSelection) registerFiles(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&s.files, "filename", "f", nil, "file or directory with manifests of the objects, - for standard input; may be given several times")
	f.BoolVarP(&s.recursive, "recursive", "R", false, "with -f: include subdirectories")
}

// register registers -l and --all as well.
func (s *objectSelection) register(cmd *cobra.Command) {
	s.registerFiles(cmd)
	f := cmd.Flags()
	f.StringVarP(&s.labels, "selector", "l", "", "objects with these labels: room=hall")
	f.BoolVar(&s.all, "all", false, "all objects of the kind in the namespace")
}

// refs are the objects that are meant, each with its name.
func (s *objectSelection) refs(ctx context.Context, h *access.Hub, args []string, stdin io.Reader) (all []objectRef, err error) {
	many := s.all || s.labels != ""
	if (len(s.files) > 0) == (len(args) > 0) || s.all && s.labels != "" || many && len(s.files) > 0 {
		return nil, exitcode.Errorf(exitcode.Misused, "nothing says which objects, or two things do: KIND NAME…, KIND -l LABELS, KIND --all, or -f FILE")
	}
	if len(s.files) > 0 {
		return s.described(ctx, h, stdin)
	}
	targets, err := parseTargets(ctx, h, args)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		if (t.name == "") != many {
			return nil, exitcode.Errorf(exitcode.Misused, "which %s is missing, or said twice: a name, -l LABELS or --all", t.kind.Plural)
		}
		if t.name != "" {
			all = append(all, t)
			continue
		}
		_, err := h.List(ctx, t.kind, client.ListOptions{Namespace: t.namespace, Labels: s.labels}, func(page []client.Object) error {
			for _, got := range page {
				all = append(all, objectRef{t.kind, got.Metadata.Namespace, got.Metadata.Name})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// described are the objects of the manifests.
func (s *objectSelection) described(ctx context.Context, h *access.Hub, stdin io.Reader) (all []objectRef, err error) {
	manifests, err := readManifests(s.files, s.recursive, stdin)
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		ref := objectRef{name: m.object.Metadata.Name}
		err := m.err
		if err == nil {
			ref.kind, err = h.KindOf(ctx, m.object.TypeMeta)
		}
		if err == nil {
			ref.namespace, err = manifestNamespace(h, ref.kind, m.object)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
		all = append(all, ref)
	}
	return all, nil
}
