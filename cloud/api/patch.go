// SPDX-License-Identifier: Apache-2.0

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

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	applyPatch = "application/apply-patch+yaml"
	// strategicPatch is what kubectl and client-go send for kinds that are compiled into them: Secret, ConfigMap, Event, Lease.
	strategicPatch = "application/strategic-merge-patch+json"

	// patchField is what an error names as the field if it is about the patch itself: of a refused object kubectl shows nothing but fields
	// with their messages.
	patchField = "patch"

	// maxOperations bounds the operations of a JSON patch, and maxCopied the bytes that its copies add up to.
	maxOperations = 1000
	maxCopied     = 8 << 20
)

// patch serves PATCH.
func (ow *objectWriter) patch(w http.ResponseWriter, r *request) error {
	if r.media == applyPatch {
		return ow.apply(w, r)
	}
	if r.Form.Has("force") {
		return badRequest("force", "force is for server-side apply only")
	}
	if !slices.Contains(r.kind.patches(), r.media) {
		return statusErrorf(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"the body of the request was in an unknown format - accepted media types include: %s", strings.Join(r.kind.patches(), ", "))
	}
	raw, err := r.body(mergePatch, jsonPatch, strategicPatch)
	if err != nil {
		return err
	}
	patch, err := newPatcher(r.media, raw)
	if err != nil {
		return err
	}
	return ow.change(w, r, func(old *objects.Object) (*objects.Object, error) {
		before, err := r.patchTarget(raw, old)
		if err != nil {
			return nil, err
		}
		after, err := patch(before)
		if err != nil {
			return nil, r.about(r.key.Name, err)
		}
		next, err := ow.decode(w, r, after, old)
		if err != nil {
			return nil, err
		}
		if next.Metadata.ResourceVersion == old.Metadata.ResourceVersion && !setsRevision(r.media, raw) {
			next.Metadata.ResourceVersion = "" // the client expects none
		}
		return next, nil
	})
}

// patchTarget is what a patch is applied to. The status, most of a Device, is left out where it makes no difference.
func (r *request) patchTarget(patch []byte, old *objects.Object) ([]byte, error) {
	if r.media == mergePatch && r.subresource == "" && r.kind.dialect == nil && rawjson.Field(patch, "status") == nil {
		without := *old
		without.Status = nil
		old = &without
	}
	return r.kind.form(old)
}

// setsRevision reports whether a patch says for which resourceVersion it is.
func setsRevision(media string, raw []byte) bool {
	if media != jsonPatch {
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
	_ = json.Unmarshal(raw, &ops) // patcher has decoded it
	for _, op := range ops {
		if op.Path == "/metadata/resourceVersion" || op.Path == "/metadata" || op.Path == "" {
			return true
		}
	}
	return false
}

// newPatcher is the function that applies a patch.
func newPatcher(media string, raw []byte) (func([]byte) ([]byte, error), error) {
	switch media {
	case strategicPatch:
		return strategicPatcher(raw)
	case jsonPatch:
		return jsonPatcher(raw)
	}
	if raw[0] != '{' {
		return nil, badRequest("", "a merge patch is an object")
	}
	return func(doc []byte) ([]byte, error) {
		var target, patch any
		if err := errors.Join(decodeNumbers(doc, &target), decodeNumbers(raw, &patch)); err != nil {
			return nil, err
		}
		return json.Marshal(applyMergePatch(target, patch))
	}, nil
}

// decodeNumbers decodes JSON and keeps numbers as they are written.
func decodeNumbers(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(v)
}

// applyMergePatch applies a merge patch (RFC 7396). The time that jsonpatch.MergePatch needs grows with the square of the fields
// that a patch removes.
func applyMergePatch(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	fields, ok := target.(map[string]any)
	if !ok {
		fields = make(map[string]any, len(changes))
	}
	for name, value := range changes {
		if value == nil {
			delete(fields, name)
		} else {
			fields[name] = applyMergePatch(fields[name], value)
		}
	}
	return fields
}

func jsonPatcher(raw []byte) (func([]byte) ([]byte, error), error) {
	ops, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, badRequest("", "a JSON patch is a list of operations: %v", err)
	}
	if len(ops) > maxOperations {
		return nil, statusErrorf(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "a JSON patch has at most %d operations, this one %d", maxOperations, len(ops))
	}
	opts := jsonpatch.NewApplyOptions()
	opts.AccumulatedCopySizeLimit = maxCopied
	return func(doc []byte) ([]byte, error) {
		out, err := ops.ApplyWithOptions(doc, opts)
		if errors.Is(err, jsonpatch.ErrTestFailed) {
			return nil, resource.Errorf(resource.Invalid, patchField, "the patch is not for this object: %v", err)
		}
		if err != nil {
			return nil, resource.Errorf(resource.Invalid, patchField, "the patch can't be applied: %v", err)
		}
		return out, nil
	}, nil
}

func strategicPatcher(raw []byte) (func([]byte) ([]byte, error), error) {
	if !json.Valid(raw) {
		return nil, badRequest("", "a strategic merge patch is JSON")
	}
	return func(doc []byte) (out []byte, err error) {
		defer func() {
			if p := recover(); p != nil { // the library trusts the directives of a patch
				err = badRequest("", "the patch can't be applied: %v", p)
			}
		}()
		out, err = strategicpatch.StrategicMergePatchUsingLookupPatchMeta(doc, raw, patchPath(""))
		if err != nil {
			return nil, badRequest("", "the patch can't be applied: %v", err)
		}
		return out, nil
	}, nil
}

// patchPath is a field of an object for strategic merge patches: two lists are merged, all others are replaced.
type patchPath string

// LookupPatchMetadataForStruct implements strategicpatch.LookupPatchMeta.
func (p patchPath) LookupPatchMetadataForStruct(key string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta, error) {
	var meta strategicpatch.PatchMeta
	below := patchPath(string(p) + "." + key)
	switch below {
	case ".metadata.finalizers":
		meta.SetPatchStrategies([]string{"merge"})
	case ".metadata.ownerReferences":
		meta.SetPatchStrategies([]string{"merge"})
		meta.SetPatchMergeKey("uid")
	}
	return below, meta, nil
}

// LookupPatchMetadataForSlice implements strategicpatch.LookupPatchMeta.
func (p patchPath) LookupPatchMetadataForSlice(key string) (strategicpatch.LookupPatchMeta, strategicpatch.PatchMeta, error) {
	return p.LookupPatchMetadataForStruct(key)
}

// Name implements strategicpatch.LookupPatchMeta.
func (p patchPath) Name() string { return "object" + string(p) }

// isApply reports whether a request is a server-side apply.
func (r *request) isApply() bool {
	return r.Method == http.MethodPatch && r.media == applyPatch
}

// apply serves server-side apply. It creates the object if there is none.
func (ow *objectWriter) apply(w http.ResponseWriter, r *request) error {
	if of := ow.recordedKind(r.kind); of != r.kind && (len(r.kind.FieldNames) > 0 || r.subresource != "") {
		return statusErrorf(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"server-side apply of this is for %s in the form of %s", of.Plural, of.APIVersion())
	}
	if r.FormValue("fieldManager") == "" {
		return badRequest("fieldManager", "fieldManager is required for apply patch")
	}
	raw, err := r.body(applyPatch)
	if err != nil {
		return err
	}
	config, unknown, err := r.kind.decodeApplied(raw)
	if err != nil {
		return err
	}
	if err := r.prepareApplied(config); err != nil {
		return err
	}
	if err := checkFields(w, r, unknown); err != nil {
		return err
	}
	for {
		err := ow.change(w, r, func(old *objects.Object) (*objects.Object, error) { return ow.applyTo(r, old, config) })
		if !errors.Is(err, resource.NotFound) || r.subresource != "" || r.expectedRevision(config) != "" || config.GetUID() != "" {
			return err
		}
		o, err := ow.mergeApplied(r, nil, objects.NewUnstructured(config.GroupVersionKind()), config)
		if err != nil {
			return err
		}
		err = ow.createObject(w, r, o)
		if !errors.Is(err, resource.AlreadyExists) || r.Context().Err() != nil {
			return err
		}
		if _, lost := ow.reader.Get(r.Context(), r.key); lost != nil {
			return err // the name is taken in another namespace
		}
	}
}

// decodeApplied decodes an applied configuration: only the fields that it has, with values in the form in which they are
// stored. It returns the unknown fields.
func (k *Kind) decodeApplied(raw []byte) (*unstructured.Unstructured, []string, error) {
	config, err := objects.ToUnstructured(raw)
	if err != nil || config.Object == nil {
		return nil, nil, badRequest("", "the body must be an object")
	}
	if config.GetAPIVersion() == "" || config.GetKind() == "" {
		return nil, nil, badRequest("apiVersion", "apiVersion and kind must be set in what is applied")
	}
	if k.dialect != nil { // unknown fields are kept
		if err := k.checkType(resource.TypeMeta{APIVersion: config.GetAPIVersion(), Kind: config.GetKind()}); err != nil {
			return nil, nil, err
		}
		plain, err := k.dialect.Plain(raw)
		if err != nil {
			return nil, nil, err
		}
		config, err = objects.ToUnstructured(plain)
		return config, k.dialect.Unknown(raw), err
	}
	o, unknown, err := k.decode(raw)
	if err != nil {
		return nil, nil, err
	}
	k.prune(config.Object, unknown)
	canonical, err := o.ForClient()
	if err != nil {
		return nil, nil, err
	}
	stored, err := objects.ToUnstructured(canonical)
	if err != nil {
		return nil, nil, err
	}
	config.Object = adoptValues(config.Object, stored.Object).(map[string]any)
	return config, unknown, nil
}

// adoptValues replaces values by those that are stored for them: 40 becomes "40" where a string is stored.
func adoptValues(applied, stored any) any {
	switch a := applied.(type) {
	case map[string]any:
		if s, ok := stored.(map[string]any); ok {
			for name, v := range a {
				if below, known := s[name]; known {
					a[name] = adoptValues(v, below)
				}
			}
		}
		return a
	case []any:
		if s, ok := stored.([]any); ok && len(s) == len(a) {
			for i := range a {
				a[i] = adoptValues(a[i], s[i])
			}
		}
		return a
	}
	if stored == nil {
		return applied
	}
	return stored
}

// prepareApplied checks that a configuration is for the object on the path, and leaves out what it can't set there.
func (r *request) prepareApplied(config *unstructured.Unstructured) error {
	if name := config.GetName(); name != "" && name != r.key.Name {
		return r.wrongName(name)
	}
	if namespace := config.GetNamespace(); namespace != "" && namespace != r.key.Namespace {
		return r.wrongNamespace(namespace)
	}
	config.SetName(r.key.Name)
	config.SetNamespace(r.key.Namespace)
	if r.subresource == "" {
		r.kind.dropStatus(config)
		return nil
	}
	for field := range config.Object {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, field) {
			delete(config.Object, field)
		}
	}
	return nil
}

// dropStatus removes the status from a configuration, except in dialects that have desired values there.
func (k *Kind) dropStatus(config *unstructured.Unstructured) {
	if k.dialect == nil || k.dialect.BareStatus {
		delete(config.Object, "status")
	}
}

// expectedRevision is the resourceVersion in a configuration. Manifests of dialects have meaningless ones.
func (r *request) expectedRevision(config *unstructured.Unstructured) string {
	text := config.GetResourceVersion()
	if _, err := parseRevision(text); err != nil && r.kind.dialect != nil {
		return ""
	}
	return text
}

// applyTo is an object after a configuration has been applied to it.
func (ow *objectWriter) applyTo(r *request, old *objects.Object, config *unstructured.Unstructured) (*objects.Object, error) {
	live, err := r.kind.managedForm(old, r.subresource)
	if err != nil {
		return nil, err
	}
	if live, err = ow.addManagers(r.kind, live); err != nil {
		return nil, err
	}
	next, err := ow.mergeApplied(r, old, live, config)
	if err == nil {
		next.Metadata.ResourceVersion = r.expectedRevision(config)
	}
	return next, err
}

// mergeApplied merges a configuration into the live object, by the rules of field managers.
func (ow *objectWriter) mergeApplied(r *request, old *objects.Object, live, config *unstructured.Unstructured) (*objects.Object, error) {
	fm, err := ow.objects.Managers.Get(r.kind.groupVersionKind(), r.subresource)
	if err != nil {
		return nil, err
	}
	merged, err := fm.Apply(live, config.DeepCopy(), r.FormValue("fieldManager"), httpserver.IsQueryTrue(r.Form, "force"))
	if err != nil {
		return nil, managerError(err)
	}
	raw, err := json.Marshal(merged.(*unstructured.Unstructured).Object)
	if err != nil {
		return nil, err
	}
	next, _, err := r.toCanonical(raw, old)
	if err == nil && old != nil && applyChangedNothing(old, next, r.subresource) {
		next.Metadata.ManagedFields = old.Metadata.ManagedFields
	}
	return next, err
}
