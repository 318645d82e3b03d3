package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/edgebus/edgebus/topics/resource"
)

const (
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	// maxOperations bounds a JSON patch, and maxCopied what its copies may add up to.
	maxOperations = 1000
	maxCopied     = 8 << 20
)

func (s *server) patch(w http.ResponseWriter, r *request) error {
	if r.media == applyPatch {
		return s.apply(w, r)
	}
	if r.FormValue("force") != "" {
		return badRequest("force", "force is for server-side apply only")
	}
	if !slices.Contains(r.kind.patches(), r.media) {
		return refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"the body of the request was in an unknown format - accepted media types include: %s", strings.Join(r.kind.patches(), ", "))
	}
	raw, err := r.body(mergePatch, jsonPatch, strategicPatch)
	if err != nil {
		return err
	}
	apply, err := patcher(r.media, raw)
	if err != nil {
		return err
	}
	return s.change(w, r, func(old *object) (*object, error) {
		before, err := r.patched(r.media, raw, old)
		if err != nil {
			return nil, err
		}
		after, err := apply(before)
		if err != nil {
			return nil, r.about(r.key.Name, err)
		}
		next, err := s.heed(w, r, after, old)
		if err != nil {
			return nil, err
		}
		if next.Metadata.ResourceVersion == old.Metadata.ResourceVersion && !names(r.media, raw) {
			next.Metadata.ResourceVersion = "" // it came from us: nothing is expected
		}
		return next, nil
	})
}

// patched is what a patch is applied to. The status, most of a Device, is left out where it makes no difference.
func (r *request) patched(kind string, patch []byte, old *object) ([]byte, error) {
	if kind == mergePatch && r.subresource == "" && r.kind.foreign == nil && member(patch, "status") == nil {
		without := *old
		without.Status = nil
		old = &without
	}
	return r.kind.form(old)
}

// names says whether a patch says which version it is for.
func names(kind string, raw []byte) bool {
	if kind != jsonPatch {
		var p struct {
			Metadata struct {
				ResourceVersion *string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		return json.Unmarshal(raw, &p) == nil && p.Metadata.ResourceVersion != nil
	}
	var ops []struct {
		Path string `json:"path"`
	}
	_ = json.Unmarshal(raw, &ops) // patcher has read it already
	for _, op := range ops {
		if op.Path == "/metadata/resourceVersion" || op.Path == "/metadata" || op.Path == "" {
			return true
		}
	}
	return false
}

func patcher(kind string, raw []byte) (func([]byte) ([]byte, error), error) {
	if kind == strategicPatch {
		return strategicPatcher(raw)
	}
	if kind == mergePatch {
		if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' { // it is valid
			return nil, badRequest("", "a merge patch is an object")
		}
		return func(doc []byte) ([]byte, error) {
			var was, change any
			if err := errors.Join(decode(doc, &was), decode(raw, &change)); err != nil {
				return nil, err // both are valid: can't happen
			}
			return json.Marshal(merged(was, change))
		}, nil
	}
	ops, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, badRequest("", "a JSON patch is a list of operations: %v", err)
	}
	if len(ops) > maxOperations {
		return nil, refuse(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "a JSON patch has at most %d operations, this one %d", maxOperations, len(ops))
	}
	opts := jsonpatch.NewApplyOptions()
	opts.AccumulatedCopySizeLimit = maxCopied
	return func(doc []byte) ([]byte, error) {
		out, err := ops.ApplyWithOptions(doc, opts)
		if errors.Is(err, jsonpatch.ErrTestFailed) {
			return nil, resource.Errorf(resource.Invalid, "", "the patch is not for this object: %v", err)
		}
		if err != nil {
			return nil, resource.Errorf(resource.Invalid, "", "the patch can't be applied: %v", err)
		}
		return out, nil
	}, nil
}

// decode reads JSON, with numbers as they stand there.
func decode(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(v)
}

// merged is what a merge patch makes of a value (RFC 7396).
func merged(was, patch any) any {
	change, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	fields, ok := was.(map[string]any)
	if !ok {
		fields = make(map[string]any, len(change))
	}
	for name, value := range change {
		if value == nil {
			delete(fields, name)
			continue
		}
		fields[name] = merged(fields[name], value)
	}
	return fields
}

// strategicPatch is what kubectl and client-go send for kinds that are compiled into them, whatever the
// server says it takes: here Secret, ConfigMap and Event.
const strategicPatch = "application/strategic-merge-patch+json"

// patches are the media types of patches that a kind takes.
func (k *Kind) patches() []string {
	all := []string{jsonPatch, mergePatch, applyPatch}
	if k.Flat {
		all = append(all, strategicPatch)
	}
	return all
}

func strategicPatcher(raw []byte) (func([]byte) ([]byte, error), error) {
	if !json.Valid(raw) {
		return nil, badRequest("", "a strategic merge patch is JSON")
	}
	return func(doc []byte) (out []byte, err error) {
		defer func() {
			if p := recover(); p != nil { // it takes its directives at their word
				err = badRequest("", "the patch can't be applied: %v", p)
			}
		}()
		out, err = strategicpatch.StrategicMergePatchUsingLookupPatchMeta(doc, raw, patchedAt(""))
		if err != nil {
			return nil, badRequest("", "the patch can't be applied: %v", err)
		}
		return out, nil
	}, nil
}

// patchedAt is a place in an object of such a kind. Two lists are merged there; any other is replaced.
type patchedAt string

func (at patchedAt) LookupPatchMetadataForStruct(key string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta, error) {
	var how strategicpatch.PatchMeta
	below := patchedAt(string(at) + "." + key)
	switch below {
	case ".metadata.finalizers":
		how.SetPatchStrategies([]string{"merge"})
	case ".metadata.ownerReferences":
		how.SetPatchStrategies([]string{"merge"})
		how.SetPatchMergeKey("uid")
	}
	return below, how, nil
}

func (at patchedAt) LookupPatchMetadataForSlice(key string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta, error) {
	return at.LookupPatchMetadataForStruct(key)
}

func (at patchedAt) Name() string { return "object" + string(at) }

const applyPatch = "application/apply-patch+yaml"

// applies says whether a request is a server-side apply.
func (r *request) applies() bool {
	return r.Method == http.MethodPatch && r.media == applyPatch
}

// apply is server-side apply: the client says what it wants to be so, and owns that.
func (s *server) apply(w http.ResponseWriter, r *request) error {
	if of := s.recorded(r.kind); of != r.kind && (len(r.kind.Names) > 0 || r.subresource != "") {
		return refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"server-side apply of this is for %s in the form of %s", of.Plural, of.apiVersion())
	}
	if r.FormValue("fieldManager") == "" {
		return badRequest("fieldManager", "fieldManager is required for apply patch")
	}
	raw, err := r.body(applyPatch)
	if err != nil {
		return err
	}
	config, unknown, err := r.kind.config(raw)
	if err != nil {
		return err
	}
	if err := r.addressed(config); err != nil {
		return err
	}
	if err := checkFields(w, r, unknown); err != nil {
		return err
	}
	for {
		err := s.change(w, r, func(old *object) (*object, error) { return s.applied(r, old, config) })
		if !errors.Is(err, resource.NotFound) || r.subresource != "" || r.expects(config) || config.GetUID() != "" {
			return err
		}
		err = s.bear(w, r, config)
		if !errors.Is(err, resource.AlreadyExists) || r.Context().Err() != nil {
			return err
		}
		if _, lost := s.load(r); lost != nil {
			return err // the name is taken in another namespace
		}
	}
}

// addressed checks that a configuration is for the object on the path, and completes it.
func (r *request) addressed(config *unstructured.Unstructured) error {
	if name := config.GetName(); name != "" && name != r.key.Name {
		return badRequest("metadata.name", "the name of the object (%s) does not match the name on the URL (%s)", name, r.key.Name)
	}
	if ns := config.GetNamespace(); ns != "" && ns != r.key.Namespace {
		return badRequest("metadata.namespace", "the namespace of the object (%s) does not match the namespace on the path (%s)", ns, r.key.Namespace)
	}
	config.SetName(r.key.Name)
	config.SetNamespace(r.key.Namespace)
	if r.subresource == "" {
		r.kind.dropStatus(config)
		return nil
	}
	for field := range config.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			delete(config.Object, field)
		}
	}
	return nil
}

// dropStatus leaves out what is not to be applied. Some dialects have wishes in the status.
func (k *Kind) dropStatus(config *unstructured.Unstructured) {
	if k.foreign == nil || k.foreign.BareStatus {
		delete(config.Object, "status")
	}
}

// expects says whether a configuration names the revision that it is for. Manifests of dialects have made-up ones.
func (r *request) expects(config *unstructured.Unstructured) bool {
	text := config.GetResourceVersion()
	if r.kind.foreign != nil {
		_, err := revision(text)
		return text != "" && err == nil
	}
	return text != ""
}

// applied is what becomes of an object when a configuration is applied to it.
func (s *server) applied(r *request, old *object, config *unstructured.Unstructured) (*object, error) {
	live, err := r.kind.owned(old, r.subresource)
	if err != nil {
		return nil, err
	}
	if live, err = s.begin(r.kind, live); err != nil {
		return nil, err
	}
	next, err := s.merge(r, old, live, config)
	if err != nil {
		return nil, err
	}
	next.Metadata.ResourceVersion = ""
	if r.expects(config) {
		next.Metadata.ResourceVersion = config.GetResourceVersion()
	}
	return next, nil
}

func (s *server) merge(r *request, old *object, live, config *unstructured.Unstructured) (*object, error) {
	fm, err := s.managers.get(r.kind, r.subresource)
	if err != nil {
		return nil, err
	}
	merged, err := fm.Apply(live, config.DeepCopy(), r.FormValue("fieldManager"), isTrue(r.FormValue("force")))
	if err != nil {
		return nil, applyError(err)
	}
	raw, err := json.Marshal(merged.(*unstructured.Unstructured).Object)
	if err != nil {
		return nil, err
	}
	next, _, err := r.understand(raw, old)
	return next, err
}

// bear creates the object that a configuration describes.
func (s *server) bear(w http.ResponseWriter, r *request, config *unstructured.Unstructured) error {
	dry, err := dryRun(r.Form["dryRun"])
	if err != nil {
		return err
	}
	o, err := s.merge(r, nil, nothing(config.GroupVersionKind()), config)
	if err != nil {
		return err
	}
	record := o.Metadata.ManagedFields
	if err := s.newborn(r, o); err != nil {
		return err
	}
	o.Metadata.ManagedFields = record
	made, err := s.add(r, o, dry)
	if err != nil {
		return r.about(r.key.Name, err)
	}
	return s.answer(w, r, http.StatusCreated, made)
}

// config reads what a client applies: the fields that it named and no others, with values in the
// form in which they are kept.
func (k *Kind) config(raw []byte) (*unstructured.Unstructured, []string, error) {
	if k.foreign != nil {
		return k.foreignConfig(raw)
	}
	o, unknown, err := k.decode(raw)
	if err != nil {
		return nil, nil, err
	}
	said, err := form(raw)
	if err != nil || said.Object == nil {
		return nil, nil, badRequest("", "the body must be an object")
	}
	if said.GetAPIVersion() == "" || said.GetKind() == "" {
		return nil, nil, badRequest("apiVersion", "apiVersion and kind must be set in what is applied")
	}
	k.prune(said.Object)
	canonical, err := o.shown()
	if err != nil {
		return nil, nil, err
	}
	kept, err := form(canonical)
	if err != nil {
		return nil, nil, err
	}
	said.Object = as(said.Object, kept.Object).(map[string]any)
	return said, unknown, nil
}

// foreignConfig is config in another group's form. Nothing is left out: what is unknown is kept.
func (k *Kind) foreignConfig(raw []byte) (*unstructured.Unstructured, []string, error) {
	said, err := form(raw)
	if err != nil || said.Object == nil {
		return nil, nil, badRequest("", "the body must be an object")
	}
	if said.GetAPIVersion() == "" || said.GetKind() == "" {
		return nil, nil, badRequest("apiVersion", "apiVersion and kind must be set in what is applied")
	}
	if err := k.checkType(resource.TypeMeta{APIVersion: said.GetAPIVersion(), Kind: said.GetKind()}); err != nil {
		return nil, nil, err
	}
	plain, err := k.foreign.Plain(raw)
	if err != nil {
		return nil, nil, err
	}
	said, err = form(plain)
	return said, k.foreign.Unknown(raw), err
}

// as is said, with the values that kept has for it: 40 becomes "40" where text is kept.
func as(said, kept any) any {
	switch s := said.(type) {
	case map[string]any:
		if k, ok := kept.(map[string]any); ok {
			for name, v := range s {
				if below, known := k[name]; known {
					s[name] = as(v, below)
				}
			}
		}
		return s
	case []any:
		if k, ok := kept.([]any); ok && len(k) == len(s) {
			for i := range s {
				s[i] = as(s[i], k[i])
			}
		}
		return s
	}
	if kept == nil {
		return said
	}
	return kept
}
