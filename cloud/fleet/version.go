package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// VersionName is the name of a fleet's nth version: seven digits, as kubectl get sorts them.
func VersionName(fleet string, n int) string { return fmt.Sprintf("%s-%07d", fleet, n) }

// versionNumber is n of VersionName; 0: it is none.
func versionNumber(fleet, name string) int {
	digits, ok := strings.CutPrefix(name, fleet+"-")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || len(digits) < 7 {
		return 0
	}
	return n
}

// resolve says what references stand for. Sources that were last read before notBefore are read now.
func (c *rollouts) resolve(ctx context.Context, refs []resource.Reference, notBefore time.Time) (out []resource.Reference, err error) {
	for _, r := range refs {
		if r, err = c.Sources.Resolve(ctx, r, notBefore); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// union are all references of several specs, each once, in order.
func union(specs []resource.NodeSpec) []resource.Reference {
	found := make(map[resource.ReferenceKey]resource.Reference)
	for _, s := range specs {
		for _, r := range s.References() {
			found[r.Key()] = r
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b resource.Reference) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Source, b.Source), strings.Compare(a.Path, b.Path), strings.Compare(a.Floating, b.Floating))
	})
}

// covers says whether a version has all of these references.
func covers(v *resource.TemplateVersion, refs []resource.Reference) bool {
	known := make(map[resource.ReferenceKey]bool)
	for _, r := range v.Spec.References {
		known[r.Key()] = true
	}
	return !slices.ContainsFunc(refs, func(r resource.Reference) bool { return !known[r.Key()] })
}

// makeVersion stores a version of a fleet's template, under the first free number after the last one.
func (c *rollouts) makeVersion(ctx context.Context, f *resource.Fleet, last int, refs []resource.Reference) (*resource.TemplateVersion, error) {
	for n := last + 1; ; n++ {
		v, err := objects.Create(ctx, c.as, &resource.TemplateVersion{
			Metadata: resource.Meta{Name: VersionName(f.Metadata.Name, n), Owner: Owner(f.Metadata.Name)},
			Spec:     resource.TemplateVersionSpec{Fleet: f.Metadata.Name, Template: f.Spec.Template, References: refs},
		})
		if !errors.Is(err, resource.AlreadyExists) {
			return v, err
		}
	}
}

// Refs calls use with the digests of what versions have frozen, and nodes have of it.
func Refs(r store.Reader) func(ctx context.Context, use func(digest string)) error {
	return func(ctx context.Context, use func(digest string)) error {
		for _, kind := range []string{resource.KindTemplateVersion, resource.KindNode} {
			if err := digests(ctx, r, kind, use); err != nil {
				return err
			}
		}
		return nil
	}
}

func digests(ctx context.Context, r store.Reader, kind string, use func(digest string)) error {
	var o struct {
		Spec struct {
			References []resource.Reference  `json:"references"` // of a TemplateVersion
			Config     []resource.ConfigItem `json:"config"`     // of a Node
		} `json:"spec"`
	}
	for opts := (store.ListOptions{Limit: 500}); ; {
		page, err := r.List(ctx, kind, opts)
		if err != nil {
			return err
		}
		for _, item := range page.Items {
			o.Spec.References, o.Spec.Config = nil, nil
			if err := json.Unmarshal(item.Data, &o); err != nil {
				return fmt.Errorf("the stored %s can't be read: %w", item.Key, err)
			}
			for _, ref := range o.Spec.References {
				useAll(ref.Files, use)
			}
			for _, c := range o.Spec.Config {
				useAll(c.Files, use)
			}
			opts.After = item.Key
		}
		if opts.Rev = page.Rev; page.More == 0 {
			return nil
		}
	}
}

func useAll(files []resource.InlineFile, use func(digest string)) {
	for _, f := range files {
		if f.Digest != "" {
			use(f.Digest)
		}
	}
}
