package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// The types of a Reference.
const (
	refImage     = "image"
	refGit       = "git"
	refConfigMap = "configmap"
	refSecret    = "secret"
)

// refKey tells references apart: what floats, and where its contents go.
type refKey struct{ kind, source, path, floating string }

func keyOf(r resource.Reference) refKey { return refKey{r.Type, r.Source, r.Path, r.Floating} }

// References are what floats in a node's spec.
func References(spec resource.NodeSpec) (refs []resource.Reference) {
	if spec.OS != nil && spec.OS.Image != "" {
		name, tag := splitImage(spec.OS.Image)
		refs = append(refs, resource.Reference{Type: refImage, Source: name, Floating: tag})
	}
	for _, item := range spec.Config {
		switch {
		case item.GitRef != nil:
			refs = append(refs, resource.Reference{Type: refGit, Source: item.GitRef.Repository, Path: item.GitRef.Path, Floating: item.GitRef.TargetRevision})
		case item.ConfigMapRef != nil:
			m := item.ConfigMapRef
			refs = append(refs, resource.Reference{Type: refConfigMap, Source: namespaced(m.Namespace, m.Name), Path: m.MountPath})
		case item.SecretRef != nil:
			m := item.SecretRef
			refs = append(refs, resource.Reference{Type: refSecret, Source: namespaced(m.Namespace, m.Name)})
		}
	}
	return refs
}

func namespaced(namespace, name string) string { return cmp.Or(namespace, "default") + "/" + name }

// splitImage divides a reference to an image into its name, and its tag or digest.
func splitImage(image string) (name, tag string) {
	if name, digest, ok := strings.Cut(image, "@"); ok {
		return name, digest
	}
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

// Freeze replaces what floats in a node's spec by what it stood for when a version was made. A Secret is by nature what it is
// now: its values are kept in no other place.
func Freeze(spec resource.NodeSpec, refs []resource.Reference) resource.NodeSpec {
	known := make(map[refKey]resource.Reference, len(refs))
	for _, r := range refs {
		known[keyOf(r)] = r
	}
	if spec.OS != nil && spec.OS.Image != "" {
		name, tag := splitImage(spec.OS.Image)
		if r, ok := known[refKey{refImage, name, "", tag}]; ok {
			os := *spec.OS
			os.Image = name + "@" + r.Resolved
			spec.OS = &os
		}
	}
	spec.Config = slices.Clone(spec.Config)
	for i, item := range spec.Config {
		switch {
		case item.GitRef != nil:
			ref := *item.GitRef
			if r, ok := known[refKey{refGit, ref.Repository, ref.Path, ref.TargetRevision}]; ok {
				ref.TargetRevision = r.Resolved
				spec.Config[i].GitRef, spec.Config[i].Files = &ref, r.Files
			}
		case item.ConfigMapRef != nil:
			m := item.ConfigMapRef
			if r, ok := known[refKey{refConfigMap, namespaced(m.Namespace, m.Name), m.MountPath, ""}]; ok {
				spec.Config[i].Files = r.Files
			}
		}
	}
	return spec
}

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

// resolve says what references stand for now.
func (c *rollouts) resolve(ctx context.Context, refs []resource.Reference) (out []resource.Reference, err error) {
	for _, r := range refs {
		switch r.Type {
		case refImage:
			err = c.resolveImage(ctx, &r)
		case refGit:
			err = c.resolveGit(ctx, &r)
		case refConfigMap:
			err = c.resolveConfigMap(ctx, &r)
		case refSecret:
			err = c.resolveSecret(ctx, &r)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (c *rollouts) resolveImage(ctx context.Context, r *resource.Reference) error {
	if strings.HasPrefix(r.Floating, resource.DigestPrefix) {
		r.Resolved = r.Floating
		return nil
	}
	repo, err := c.registry(ctx, r.Source)
	if err != nil {
		return err
	}
	r.Resolved, err = c.Sources.Digest(ctx, repo, r.Source+":"+r.Floating)
	return err
}

// registry is the Repository of type oci that an image is in, with its credentials; the one with the longest address if there
// are several, and the zero value if there is none.
func (c *rollouts) registry(ctx context.Context, image string) (found sources.Repo, err error) {
	best := -1
	for r, err := range objects.List[resource.Repository](ctx, c.as, "") {
		if err != nil {
			return found, err
		}
		_, place, ok := strings.Cut(r.Spec.URL, "://")
		place = strings.TrimSuffix(place, "/")
		if r.Spec.Type != "oci" || !ok || image != place && !strings.HasPrefix(image, place+"/") || len(place) <= best {
			continue
		}
		if found, err = c.withSecret(ctx, r.Spec); err != nil {
			return found, err
		}
		best = len(place)
	}
	return found, nil
}

func (c *rollouts) withSecret(ctx context.Context, spec resource.RepositorySpec) (sources.Repo, error) {
	repo := sources.Repo{Spec: spec}
	if spec.SecretRef == nil {
		return repo, nil
	}
	key := store.Key{Kind: resource.KindSecret, Namespace: cmp.Or(spec.SecretRef.Namespace, "default"), Name: spec.SecretRef.Name}
	secret, err := objects.Get[resource.Secret](ctx, c.as, key)
	if err != nil {
		return repo, fmt.Errorf("the Repository's %w", err)
	}
	repo.Secret = secret.Data
	return repo, nil
}

func (c *rollouts) resolveGit(ctx context.Context, r *resource.Reference) error {
	stored, err := objects.Get[resource.Repository](ctx, c.as, store.Key{Kind: resource.KindRepository, Name: r.Source})
	if err != nil {
		return err
	}
	repo, err := c.withSecret(ctx, stored.Spec)
	if err != nil {
		return err
	}
	if r.Resolved, err = c.Sources.Commit(ctx, repo, r.Floating); err != nil {
		return err
	}
	files, err := c.Sources.Files(ctx, repo, r.Resolved, r.Path)
	if err != nil {
		return err
	}
	for _, f := range files {
		at := "/" + f.Path
		if f.Path == "." {
			at = "/" + path.Base(r.Path)
		}
		if err := c.keep(ctx, r, at, int(f.Mode), f.Content); err != nil {
			return err
		}
	}
	return nil
}

func (c *rollouts) resolveConfigMap(ctx context.Context, r *resource.Reference) error {
	namespace, name, _ := strings.Cut(r.Source, "/")
	m, err := objects.Get[resource.ConfigMap](ctx, c.as, store.Key{Kind: resource.KindConfigMap, Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	values := maps.Clone(m.BinaryData)
	if values == nil {
		values = make(map[string][]byte)
	}
	for key, text := range m.Data {
		values[key] = []byte(text)
	}
	var all bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := c.keep(ctx, r, path.Join(r.Path, key), 0o644, values[key]); err != nil {
			return err
		}
		fmt.Fprintf(&all, "%s %s\n", r.Files[len(r.Files)-1].Digest, key)
	}
	r.Resolved = resource.DigestOf(all.Bytes())
	return nil
}

// resolveSecret notes a Secret's version. Its values are kept nowhere else, and a hash of them would help to guess them.
func (c *rollouts) resolveSecret(ctx context.Context, r *resource.Reference) error {
	namespace, name, _ := strings.Cut(r.Source, "/")
	s, err := objects.Get[resource.Secret](ctx, c.as, store.Key{Kind: resource.KindSecret, Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	r.Resolved = s.Metadata.UID
	return nil
}

// keep adds a file to what a reference contains.
func (c *rollouts) keep(ctx context.Context, r *resource.Reference, at string, mode int, content []byte) error {
	digest, size, err := c.Blobs.Put(ctx, bytes.NewReader(content), "")
	if err != nil {
		return err
	}
	r.Files = append(r.Files, resource.InlineFile{Path: at, Digest: digest, Size: size, Mode: &mode})
	return nil
}

// repository says at a Repository whether it can be read.
func (c *rollouts) repository(ctx context.Context, key store.Key) (time.Duration, error) {
	stored, err := objects.Get[resource.Repository](ctx, c.as, key)
	if err != nil {
		return 0, ignoreGone(err)
	}
	cond := resource.Condition{
		Type: "Accessible", Status: "True", Reason: "Accessible", Message: "it can be read", ObservedGeneration: stored.Metadata.Generation,
	}
	repo, err := c.withSecret(ctx, stored.Spec)
	if err == nil {
		err = c.Sources.Accessible(ctx, repo)
	}
	if err != nil {
		cond.Status, cond.Reason, cond.Message = "False", reasonOf(err), err.Error()
	}
	_, err = objects.UpdateStatus(ctx, c.as, key, func(r *resource.Repository) error {
		r.Status.Conditions = resource.SetCondition(r.Status.Conditions, cond, c.Now())
		return nil
	})
	return c.Poll, ignoreGone(err)
}

// union are all references of several specs, each once, in order.
func union(specs []resource.NodeSpec) []resource.Reference {
	found := make(map[refKey]resource.Reference)
	for _, s := range specs {
		for _, r := range References(s) {
			found[keyOf(r)] = r
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b resource.Reference) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Source, b.Source), strings.Compare(a.Path, b.Path), strings.Compare(a.Floating, b.Floating))
	})
}

// covers says whether a version has all of these references.
func covers(v *resource.TemplateVersion, refs []resource.Reference) bool {
	known := make(map[refKey]bool)
	for _, r := range v.Spec.References {
		known[keyOf(r)] = true
	}
	return !slices.ContainsFunc(refs, func(r resource.Reference) bool { return !known[keyOf(r)] })
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
