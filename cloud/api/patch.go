package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"

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
			if out, ok := appendMerged(nil, doc, raw, 0); ok {
				return out, nil
			}
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

// maxMerge is how deep appendMerged goes: each level is gone through once more than the one around it.
const maxMerge = 32

// appendMerged writes what a merge patch makes of an object (RFC 7396). Both are valid. What is deep, or has names
// with escapes, is left to merged, for which it is decoded.
func appendMerged(out, doc, patch []byte, depth int) ([]byte, bool) {
	if depth == maxMerge {
		return out, false
	}
	changes := make(map[string][]byte, 4)
	for w := fieldsIn(patch); w.next(); {
		if bytes.IndexByte(w.name, '\\') >= 0 {
			return out, false
		}
		changes[string(w.name)] = w.value // the last one counts
	}
	out = append(out, '{')
	put := func(name, was, value []byte) (ok bool) {
		if out[len(out)-1] != '{' {
			out = append(out, ',')
		}
		if value[0] != '{' {
			out = appendMember(out, name, value)
			return true
		}
		out, ok = appendMerged(append(append(append(out, '"'), name...), `":`...), was, value, depth+1)
		return ok
	}
	for w := fieldsIn(doc); w.next(); {
		change, changed := changes[string(w.name)]
		delete(changes, string(w.name))
		switch {
		case bytes.IndexByte(w.name, '\\') >= 0:
			return out, false
		case !changed:
			if out[len(out)-1] != '{' {
				out = append(out, ',')
			}
			out = appendMember(out, w.name, w.value)
		case string(change) != "null" && !put(w.name, w.value, change):
			return out, false
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if change := changes[name]; string(change) != "null" && !put([]byte(name), nil, change) {
			return out, false
		}
	}
	return append(out, '}'), true
}
