// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// explainOptions are the flags of edgebus explain.
type explainOptions struct {
	access.Hub
	recursive bool
	version   string
}

func newExplain() *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain KIND[.FIELD…]",
		Short: "Explain a kind of objects, or a field of it",
		Long: `Explain what a kind of objects is for and which fields it has, or what a field means, as the hub that is asked
describes them. Fields of lists and maps are named like those of their elements.

` + exitcode.Help,
		Example: `  edgebus explain device
  edgebus explain device.spec.alarms
  edgebus explain devicemodel.spec --recursive
  edgebus explain device --api-version devices.kubeedge.io/v1beta1`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names, directive := o.CompleteFromHub(cmd, func(ctx context.Context) []string { return o.complete(ctx, toComplete) })
			return names, directive | cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	o.Register(cmd)
	cmd.Flags().BoolVar(&o.recursive, "recursive", false, "list the fields of the fields, too, without what they mean")
	cmd.Flags().StringVar(&o.version, "api-version", "", "group and version, if several have the kind")
	return cmd
}

// fieldSchema is an OpenAPI 3 schema, as far as it is explained.
type fieldSchema struct {
	Ref         string                  `json:"$ref"`
	Type        string                  `json:"type"`
	Description string                  `json:"description"`
	Enum        []any                   `json:"enum"`
	Default     any                     `json:"default"`
	Required    []string                `json:"required"`
	Properties  map[string]*fieldSchema `json:"properties"`
	Items       *fieldSchema            `json:"items"`
	Additional  *fieldSchema            `json:"additionalProperties"`
	AllOf       []*fieldSchema          `json:"allOf"`
	IntOrString bool                    `json:"x-kubernetes-int-or-string"`
	Kinds       []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`
}

// schemaSet are those of a group and version, by name.
type schemaSet map[string]*fieldSchema

// schemaOf is the schema of a kind, and those that it may refer to.
func (o *explainOptions) schemaOf(ctx context.Context, k client.Kind) (*fieldSchema, schemaSet, error) {
	path := "/openapi/v3/apis/" + k.APIVersion()
	if k.Group == "" {
		path = "/openapi/v3/api/" + k.Version
	}
	var document struct {
		Components struct {
			Schemas schemaSet `json:"schemas"`
		} `json:"components"`
	}
	if err := o.Get(ctx, path, &document); err != nil {
		return nil, nil, err
	}
	all := document.Components.Schemas
	for _, s := range all {
		for _, of := range s.Kinds {
			if of.Group == k.Group && of.Version == k.Version && of.Kind == k.Name {
				return s, all, nil
			}
		}
	}
	return nil, nil, resource.Errorf(resource.NotFound, "", "the hub has no schema of %s %s", k.APIVersion(), k.Name)
}

// findKind finds a kind by its name, and by --api-version if that is given.
func (o *explainOptions) findKind(ctx context.Context, name string) (client.Kind, error) {
	k, err := o.Kind(ctx, name)
	if err != nil || o.version == "" {
		return k, err
	}
	return o.KindOf(ctx, resource.TypeMeta{APIVersion: o.version, Kind: k.Name})
}

// parse finds the kind of an argument, and the path of a field: a kind's name may have its group in it.
func (o *explainOptions) parse(ctx context.Context, arg string) (k client.Kind, path []string, err error) {
	name, rest, _ := strings.Cut(strings.Trim(arg, "."), ".")
	all, err := o.Kinds(ctx)
	if err != nil {
		return k, nil, err
	}
	for _, known := range all {
		if below, ok := strings.CutPrefix(arg+".", known.Qualified()+"."); ok && known.Group != "" {
			name, rest = known.Qualified(), strings.TrimSuffix(below, ".")
		}
	}
	if k, err = o.findKind(ctx, name); err == nil && rest != "" {
		path = strings.Split(rest, ".")
	}
	return k, path, err
}

func (o *explainOptions) run(cmd *cobra.Command, arg string) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	k, path, err := o.parse(ctx, arg)
	if err != nil {
		return err
	}
	s, all, err := o.schemaOf(ctx, k)
	if err != nil {
		return err
	}
	if k.Group != "" {
		fmt.Fprintf(out, "GROUP:      %s\n", k.Group)
	}
	fmt.Fprintf(out, "KIND:       %s\nVERSION:    %s\n\n", k.Name, k.Version)
	for i, field := range path {
		within := all.fieldsOf(s)
		below := within.Properties[field]
		if below == nil {
			at := strings.Join(append([]string{k.Name}, path[:i]...), ".")
			return exitcode.Errorf(exitcode.NotFound, "%s has no field %s%s", at, field, resource.DidYouMean(field, slices.Sorted(maps.Keys(within.Properties))))
		}
		s = below
	}
	if len(path) > 0 {
		fmt.Fprintf(out, "FIELD: %s <%s>\n\n", path[len(path)-1], all.typeOf(s))
	}
	writeWrapped(out, "DESCRIPTION:", all.describe(s))
	if values := s.values(); values != "" {
		fmt.Fprintf(out, "%s\n\n", values)
	}
	if within := all.fieldsOf(s); len(within.Properties) > 0 {
		fmt.Fprintln(out, "FIELDS:")
		all.writeFields(out, within, 1, o.recursive)
	}
	return nil
}

// complete offers kinds, and the fields below one.
func (o *explainOptions) complete(ctx context.Context, typed string) (names []string) {
	name, _, below := strings.Cut(typed, ".")
	if !below {
		all, _ := o.Kinds(ctx)
		for _, k := range client.Canonical(all) {
			names = append(names, k.Singular)
		}
		return names
	}
	k, err := o.findKind(ctx, name)
	if err != nil {
		return nil
	}
	s, all, err := o.schemaOf(ctx, k)
	if err != nil {
		return nil
	}
	parent := typed[:strings.LastIndex(typed, ".")]
	for field := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(parent, name), "."), ".") {
		if field == "" {
			continue
		}
		if s = all.fieldsOf(s).Properties[field]; s == nil {
			return nil
		}
	}
	for _, field := range slices.Sorted(maps.Keys(all.fieldsOf(s).Properties)) {
		names = append(names, parent+"."+field)
	}
	return names
}

// resolve follows a schema that only refers to another.
func (all schemaSet) resolve(s *fieldSchema) *fieldSchema {
	for s != nil {
		ref := s.Ref
		if ref == "" && len(s.AllOf) == 1 && len(s.Properties) == 0 {
			ref = s.AllOf[0].Ref
		}
		next := all[ref[strings.LastIndex(ref, "/")+1:]]
		if next == nil {
			return s
		}
		s = next
	}
	return &fieldSchema{}
}

// fieldsOf is the schema whose fields are named below a schema: that of the elements, of a list or a map.
func (all schemaSet) fieldsOf(s *fieldSchema) *fieldSchema {
	for {
		s = all.resolve(s)
		switch {
		case s.Items != nil:
			s = s.Items
		case s.Additional != nil && len(s.Properties) == 0:
			s = s.Additional
		default:
			return s
		}
	}
}

func (all schemaSet) typeOf(s *fieldSchema) string {
	switch s = all.resolve(s); {
	case s.Items != nil:
		return "[]" + all.typeOf(s.Items)
	case s.Additional != nil:
		return "map[string]" + all.typeOf(s.Additional)
	case s.Type == "object", len(s.Properties) > 0, s.Type == "" && !s.IntOrString:
		return "Object"
	case s.IntOrString:
		return "scalar"
	}
	return s.Type
}

func (all schemaSet) describe(s *fieldSchema) string {
	if s.Description != "" {
		return s.Description
	}
	if text := all.resolve(s).Description; text != "" {
		return text
	}
	return "<no description>"
}

// values are those that a field may have, and what it has without one.
func (s *fieldSchema) values() string {
	var parts []string
	if len(s.Enum) > 0 {
		parts = append(parts, "ENUM: "+strings.Trim(strings.ReplaceAll(fmt.Sprintf("%q", s.Enum), `" "`, `", "`), "[]"))
	}
	if s.Default != nil {
		parts = append(parts, fmt.Sprintf("DEFAULT: %v", s.Default))
	}
	return strings.Join(parts, "\n")
}

const explainWidth = 80

func (all schemaSet) writeFields(out io.Writer, of *fieldSchema, level int, recursive bool) {
	indent := strings.Repeat("  ", level)
	for _, name := range slices.Sorted(maps.Keys(of.Properties)) {
		field, needed := of.Properties[name], ""
		if slices.Contains(of.Required, name) {
			needed = " -required-"
		}
		fmt.Fprintf(out, "%s%s\t<%s>%s\n", indent, name, all.typeOf(field), needed)
		if !recursive {
			if values := field.values(); values != "" {
				fmt.Fprintf(out, "%s%s\n", indent, strings.ReplaceAll(values, "\n", "\n"+indent))
			}
			writeLines(out, all.describe(field), indent+"  ")
			fmt.Fprintln(out)
			continue
		}
		all.writeFields(out, all.fieldsOf(field), level+1, true)
	}
}

func writeWrapped(out io.Writer, heading, text string) {
	fmt.Fprintln(out, heading)
	writeLines(out, text, "    ")
	fmt.Fprintln(out)
}

// writeLines writes a text in lines of a terminal's width.
func writeLines(out io.Writer, text, indent string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line) > len(indent) && len(line)+len(word) >= explainWidth {
			fmt.Fprintln(out, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	fmt.Fprintln(out, strings.TrimRight(line, " "))
}
