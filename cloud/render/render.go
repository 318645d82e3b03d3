// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/edgebus/edgebus/cloud/images"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/schedule"
)

// The bounds of a rendered spec, in bytes.
const (
	MaxInline   = 1 << 10  // content that travels inside the rendered spec; longer content is a blob
	MaxFile     = 16 << 20 // one file, decompressed
	MaxContents = 64 << 20 // all files of a node
	MaxManifest = 1 << 20  // the rendered spec itself, in JSON
)

// Lookups resolve what a spec refers to. They return an error of kind NotFound if the object doesn't exist; any other error
// ends the rendering, which is tried again.
type Lookups struct {
	ConfigMap func(namespace, name string) ([]ConfigMapValue, error)
	// Blob is the size of a blob that the hub has; nil: it is not compared.
	Blob func(digest string) (size int64, ok bool)
	// Secret returns the keys of a Secret and its version. The values are never part of a rendered spec.
	Secret func(namespace, name string) (version string, keys []string, err error)
}

// ConfigMapValue is a value of a ConfigMap.
type ConfigMapValue struct {
	Key  string
	Data []byte
	// digest is that of Data, if it is too long to be inline: many nodes may refer to the same ConfigMap.
	digest string
}

// ConfigMapValues are those of a ConfigMap, in the order of their keys.
func ConfigMapValues(m resource.ConfigMap) (list []ConfigMapValue) {
	values := m.Values()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v := ConfigMapValue{Key: key, Data: values[key]}
		if len(v.Data) > MaxInline {
			v.digest = resource.DigestOf(v.Data)
		}
		list = append(list, v)
	}
	return list
}

// Problem is why a spec can't be rendered. Only a change of the spec, or of an object that it refers to, resolves it.
type Problem struct {
	// Reason is one word: InvalidConfig, NotSupported, PathConflict, TooLarge, ReferenceNotFound, or why a source can't be read.
	Reason string
	// Message names the items, the paths and the rule.
	Message string
	// Unresolved says that it is a reference that can't be resolved.
	Unresolved bool
}

func (p *Problem) Error() string { return p.Message }

// The reasons of a Problem.
const (
	ReasonInvalid      = "InvalidConfig"
	ReasonNotSupported = "NotSupported"
	ReasonPathConflict = "PathConflict"
	ReasonTooLarge     = "TooLarge"
	ReasonNotFound     = "ReferenceNotFound"
	ReasonNotRead      = "NotReadYet"
)

func newProblem(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Render makes what a node is sent of what its spec says, without the version. contents are the files that are too long for
// it, by digest. The same spec and the same answers of the lookups give the same result. The error is a *Problem, or what a lookup
// failed with.
func Render(spec resource.NodeSpec, lookups Lookups) (out resource.RenderedSpec, contents map[string][]byte, err error) {
	b := &specBuilder{lookups: lookups, contents: make(map[string][]byte)}
	files := b.newTree()
	for _, item := range spec.Config {
		if err := b.item(files, item); err != nil {
			return out, nil, err
		}
	}
	if len(b.unresolved) > 0 {
		return out, nil, b.unresolvedProblem()
	}
	if err := checkUpdatePolicy(spec.UpdatePolicy); err != nil {
		return out, nil, err
	}
	out = resource.RenderedSpec{
		UpdatePolicy: spec.UpdatePolicy, OS: spec.OS, Hooks: spec.Hooks, Monitoring: spec.Monitoring, Resources: spec.Resources, Drift: cmp.Or(spec.Drift, resource.DriftRestore),
	}
	if out.Files, err = files.list(); err != nil {
		return out, nil, err
	}
	if out.Applications, err = b.applications(spec.Applications); err != nil {
		return out, nil, err
	}
	if p := spec.UpdatePolicy; p != nil && p.UpdateSchedule != nil { // nobody else pulls them by themselves
		for i, a := range spec.Applications {
			at := slices.IndexFunc(out.Applications, func(r resource.RenderedApplication) bool { return r.Name == a.Name })
			out.Applications[at].Images = images.ListImages(spec.Applications[i : i+1])
		}
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return out, nil, err
	}
	if len(raw) > MaxManifest {
		return out, nil, newProblem(ReasonTooLarge, "the rendered spec has %d bytes without the contents that travel apart; at most %d are sent to a node", len(raw), MaxManifest)
	}
	return out, b.contents, nil
}

// checkUpdatePolicy reads the schedules of a policy as the node's agent does.
func checkUpdatePolicy(p *resource.UpdatePolicy) error {
	if p == nil {
		return nil
	}
	for field, s := range map[string]*resource.UpdateSchedule{"downloadSchedule": p.DownloadSchedule, "updateSchedule": p.UpdateSchedule} {
		if s == nil {
			continue
		}
		if _, err := schedule.Parse(*s, ""); err != nil {
			return newProblem(ReasonInvalid, "spec.updatePolicy.%s: %v", field, err)
		}
	}
	return nil
}

// AddBrokers adds optional applications to a rendered spec, and their contents, in the order of their names. One that can't be rendered, for which
// the spec has no room, or whose name an application of the spec has, is left out: why is by its name.
func AddBrokers(out *resource.RenderedSpec, contents map[string][]byte, brokers []resource.Application) (leftOut map[string]string, err error) {
	if len(brokers) == 0 {
		return nil, nil
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	size, of := len(raw)+len(`,"applications":[]`), 0
	for _, c := range contents {
		of += len(c)
	}
	leftOut = make(map[string]string)
	for _, b := range slices.SortedFunc(slices.Values(brokers), func(a, b resource.Application) int { return strings.Compare(a.Name, b.Name) }) {
		if slices.ContainsFunc(out.Applications, func(a resource.RenderedApplication) bool { return a.Name == b.Name }) {
			leftOut[b.Name] = "the spec of the node has an application of this name"
			continue
		}
		one := &specBuilder{contents: make(map[string][]byte), size: of}
		rendered, err := one.applications([]resource.Application{b})
		if p := (*Problem)(nil); errors.As(err, &p) {
			leftOut[b.Name] = p.Message
			continue
		}
		if err != nil {
			return nil, err
		}
		rendered[0].Optional = true
		if raw, err = json.Marshal(rendered); err != nil {
			return nil, err
		}
		if size+len(raw) > MaxManifest {
			leftOut[b.Name] = fmt.Sprintf("with it the rendered spec of the node has %d bytes without the contents that travel apart; at most %d are sent to a node", size+len(raw), MaxManifest)
			continue
		}
		size, of = size+len(raw), one.size
		out.Applications = append(out.Applications, rendered[0])
		maps.Copy(contents, one.contents)
	}
	slices.SortStableFunc(out.Applications, func(a, b resource.RenderedApplication) int { return strings.Compare(a.Name, b.Name) })
	return leftOut, nil
}

// LookedUpKeys are the objects that a spec refers to and that are looked up: ConfigMaps and Secrets.
func LookedUpKeys(spec resource.NodeSpec) (list []store.Key) {
	for _, item := range spec.Config {
		if c := item.ConfigMapRef; c != nil && !item.IsFrozen() {
			list = append(list, store.Key{Kind: resource.KindConfigMap, Namespace: cmp.Or(c.Namespace, resource.DefaultNamespace), Name: c.Name})
		}
		if s := item.SecretRef; s != nil {
			list = append(list, store.Key{Kind: resource.KindSecret, Namespace: cmp.Or(s.Namespace, resource.DefaultNamespace), Name: s.Name})
		}
	}
	slices.SortFunc(list, store.Key.Compare)
	return slices.Compact(list)
}

// specBuilder collects what a spec comes to.
type specBuilder struct {
	lookups    Lookups
	contents   map[string][]byte
	size       int        // of all contents
	unresolved []*Problem // all of them are named, not only the first
}

func (b *specBuilder) item(t *fileTree, item resource.ConfigItem) error {
	by := "spec.config[" + item.Name + "]"
	switch {
	case item.ConfigType == resource.ConfigInline:
		return b.ignition(t, by, item.Inline)
	case item.ConfigType == resource.ConfigFiles, item.IsFrozen():
		return b.files(t, by, item.Files)
	case item.ConfigType == resource.ConfigMapRef && item.ConfigMapRef != nil:
		return b.configMap(t, by, *item.ConfigMapRef)
	case item.ConfigType == resource.ConfigSecret && item.SecretRef != nil:
		return b.secret(t, by, *item.SecretRef)
	case item.GitRef != nil && isCommit(item.GitRef.TargetRevision), item.OCIRef != nil && strings.Contains(item.OCIRef.Image, "@"):
		return nil // it is resolved, and has no files
	case item.GitRef != nil, item.HTTPRef != nil, item.OCIRef != nil:
		b.unresolved = append(b.unresolved, newProblem(ReasonNotRead, "%s has not been read", by))
		return nil
	}
	return newProblem(ReasonInvalid, "%s has the configType %.40q without its content", by, item.ConfigType)
}

func isCommit(revision string) bool {
	_, err := hex.DecodeString(revision)
	return err == nil && len(revision) == 40
}

// unresolvedProblem is one problem made of all references that can't be resolved.
func (b *specBuilder) unresolvedProblem() error {
	var texts []string
	for _, p := range b.unresolved {
		texts = append(texts, p.Message)
	}
	return &Problem{Reason: b.unresolved[0].Reason, Message: strings.Join(texts, "; "), Unresolved: true}
}

func (b *specBuilder) files(t *fileTree, by string, files []resource.InlineFile) error {
	for i, f := range files {
		data, err := f.Bytes()
		if err != nil {
			return newProblem(ReasonInvalid, "%s: the content of %s is not base64: %v", by, f.Path, err)
		}
		mode := 0o644
		if f.Mode != nil {
			mode = *f.Mode
		}
		file := resource.RenderedFile{Path: f.Path, Mode: formatMode(mode), User: f.User, Group: f.Group}
		if f.Digest != "" { // a blob that somebody has put
			if err := b.checkSize(f, fmt.Sprintf("%s.files[%d].size", by, i)); err != nil {
				return err
			}
			file.Type, file.Content = resource.FileRegular, resource.Content{Digest: f.Digest, Size: f.Size}
			err = t.add(by, file)
		} else {
			err = b.addFile(t, by, file, data, "")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *specBuilder) configMap(t *fileTree, by string, ref resource.ConfigMapMount) error {
	namespace := cmp.Or(ref.Namespace, resource.DefaultNamespace)
	values, err := b.lookups.ConfigMap(namespace, ref.Name)
	if err != nil {
		return b.missing(by, resource.KindConfigMap, namespace, ref.Name, err)
	}
	for _, v := range values {
		at, err := mountedPath(by, ref.MountPath, v.Key)
		if err != nil {
			return err
		}
		if err := b.addFile(t, by, resource.RenderedFile{Path: at, Mode: formatMode(0o644)}, v.Data, v.digest); err != nil {
			return err
		}
	}
	return nil
}

// checkSize compares the size that a spec gives for a blob with that of the blob, if the hub has it.
func (b *specBuilder) checkSize(f resource.InlineFile, field string) error {
	if b.lookups.Blob == nil {
		return nil
	}
	if size, ok := b.lookups.Blob(f.Digest); ok && size != f.Size {
		return newProblem(ReasonInvalid, "%s: %d, but the blob %s has %d bytes", field, f.Size, f.Digest, size)
	}
	return nil
}

func (b *specBuilder) secret(t *fileTree, by string, ref resource.SecretMount) error {
	namespace := cmp.Or(ref.Namespace, resource.DefaultNamespace)
	version, keys, err := b.lookups.Secret(namespace, ref.Name)
	if err != nil {
		return b.missing(by, resource.KindSecret, namespace, ref.Name, err)
	}
	for _, key := range slices.Sorted(slices.Values(keys)) {
		at, err := mountedPath(by, ref.MountPath, key)
		if err != nil {
			return err
		}
		f := resource.RenderedFile{Path: at, Type: resource.FileRegular, Mode: formatMode(0o600)}
		f.Secret = &resource.SecretKey{Name: resource.SecretTopic(namespace, ref.Name), Key: key, Version: version}
		if err := t.add(by, f); err != nil {
			return err
		}
	}
	return nil
}

// missing notes a reference to an object that doesn't exist. Another error ends the rendering.
func (b *specBuilder) missing(by, kind, namespace, name string, err error) error {
	if !errors.Is(err, resource.NotFound) {
		return err
	}
	b.unresolved = append(b.unresolved, newProblem(ReasonNotFound, "%s refers to the %s %s/%s, which doesn't exist", by, kind, namespace, name))
	return nil
}

// mountedPath is the path of a value in a directory.
func mountedPath(by, dir, key string) (string, error) {
	if dir != "/" {
		dir = strings.TrimSuffix(dir, "/")
	}
	if !path.IsAbs(dir) || path.Clean(dir) != dir {
		return "", newProblem(ReasonInvalid, "%s: the mountPath %.200q must be absolute, without '..' and '//'", by, dir)
	}
	if key == "" || key == "." || key == ".." || strings.ContainsRune(key, '/') {
		return "", newProblem(ReasonInvalid, "%s: the key %.200q is no name of a file", by, key)
	}
	return path.Join(dir, key), nil
}

func (b *specBuilder) applications(list []resource.Application) (out []resource.RenderedApplication, err error) {
	for _, a := range list {
		t := b.newTree()
		t.relative = true
		if err := b.files(t, "spec.applications["+a.Name+"]", a.Files); err != nil {
			return nil, err
		}
		r := resource.RenderedApplication{Name: a.Name, AppType: a.AppType, EnvVars: a.EnvVars}
		if r.Files, err = t.list(); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b resource.RenderedApplication) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// addFile adds a regular file with its content, and the digest of that if it is known.
func (b *specBuilder) addFile(t *fileTree, by string, f resource.RenderedFile, data []byte, digest string) error {
	if len(data) > MaxFile {
		return newProblem(ReasonTooLarge, "%s: %s has %d bytes; at most %d are rendered", by, f.Path, len(data), MaxFile)
	}
	if b.size += len(data); b.size > MaxContents {
		return newProblem(ReasonTooLarge, "%s: with %s the files of the node have %d bytes; at most %d are rendered", by, f.Path, b.size, MaxContents)
	}
	f.Type, f.Content = resource.FileRegular, b.content(data, digest)
	return t.add(by, f)
}

// content is short content itself, and the digest of long content.
func (b *specBuilder) content(data []byte, digest string) resource.Content {
	switch {
	case len(data) > MaxInline:
		if digest == "" {
			digest = resource.DigestOf(data)
		}
		c := resource.Content{Digest: digest, Size: int64(len(data))}
		b.contents[c.Digest] = data
		return c
	case utf8.Valid(data):
		return resource.Content{Text: string(data)}
	}
	return resource.Content{Base64: data}
}

func formatMode(mode int) string { return fmt.Sprintf("%04o", mode) }

// fileTree is a set of files that are one below the other, with the item of the spec that each is from.
type fileTree struct {
	relative bool // paths are relative to the directory of an application
	entries  map[string]treeEntry
}

type treeEntry struct {
	resource.RenderedFile
	by string
}

func (*specBuilder) newTree() *fileTree { return &fileTree{entries: make(map[string]treeEntry)} }

// add adds an entry. Two items may say the same of a path.
func (t *fileTree) add(by string, f resource.RenderedFile) error {
	if why := t.badPath(f.Path); why != "" {
		return newProblem(ReasonInvalid, "%s: the path %.200q %s", by, f.Path, why)
	}
	old, taken := t.entries[f.Path]
	if taken && !reflect.DeepEqual(old.RenderedFile, f) {
		if old.by == by {
			return newProblem(ReasonPathConflict, "%s has %s twice, and not the same", by, f.Path)
		}
		return newProblem(ReasonPathConflict, "%s and %s both have %s, and not the same", old.by, by, f.Path)
	}
	if !taken {
		t.entries[f.Path] = treeEntry{f, by}
	}
	return nil
}

// Linux takes no longer paths and names, in bytes.
const (
	maxPathLength = 4095
	maxNameLength = 255
)

// badPath says what is wrong with a path; empty: nothing.
func (t *fileTree) badPath(at string) string {
	switch {
	case len(at) > maxPathLength:
		return fmt.Sprintf("has more than %d bytes", maxPathLength)
	case strings.ContainsRune(at, 0):
		return "has a NUL"
	case t.relative && (!filepath.IsLocal(at) || path.Clean(at) != at || at == "."):
		return "must be relative, without '..', '//' and a '/' at its end"
	case !t.relative && (!path.IsAbs(at) || path.Clean(at) != at || at == "/"):
		return "must be absolute, without '..', '//' and a '/' at its end"
	}
	for name := range strings.SplitSeq(at, "/") {
		if len(name) > maxNameLength {
			return fmt.Sprintf("has a name with more than %d bytes", maxNameLength)
		}
	}
	return ""
}

// list returns the entries in the order of their paths. No entry is below one that is not a directory.
func (t *fileTree) list() ([]resource.RenderedFile, error) {
	out := make([]resource.RenderedFile, 0, len(t.entries))
	for _, at := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[at]
		for dir := path.Dir(at); dir != "/" && dir != "."; dir = path.Dir(dir) {
			if above, there := t.entries[dir]; there && above.Type != resource.FileDirectory {
				return nil, newProblem(ReasonPathConflict, "%s has %s, which is below %s: %s has that as a %s", e.by, at, dir, above.by, above.Type)
			}
		}
		out = append(out, e.RenderedFile)
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}
