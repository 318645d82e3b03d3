package api

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/edgebus/edgebus/topics/resource"
)

const (
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	// maxOperations bounds a JSON patch, and maxCopied what its copies may add up to.
	maxOperations = 10_000
	maxCopied     = 8 << 20
)

func (s *server) patch(w http.ResponseWriter, r *request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == applyPatch {
		return s.apply(w, r)
	}
	if r.FormValue("force") != "" {
		return badRequest("force", "force is for server-side apply only")
	}
	if err != nil || kind != mergePatch && kind != jsonPatch {
		return refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"the body of the request was in an unknown format - accepted media types include: %s, %s, %s", jsonPatch, mergePatch, applyPatch)
	}
	raw, err := r.body(mergePatch, jsonPatch)
	if err != nil {
		return err
	}
	apply, err := patcher(kind, raw)
	if err != nil {
		return err
	}
	return s.change(w, r, func(old *object) (*object, error) {
		before, err := r.kind.form(old)
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
		if next.Metadata.ResourceVersion == old.Metadata.ResourceVersion && !names(kind, raw) {
			next.Metadata.ResourceVersion = "" // it came from us: nothing is expected
		}
		return next, nil
	})
}

// names says whether a patch says which version it is for.
func names(kind string, raw []byte) bool {
	if kind == mergePatch {
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
	if kind == mergePatch {
		var tree map[string]any
		if err := json.Unmarshal(raw, &tree); err != nil || tree == nil {
			return nil, badRequest("", "a merge patch is an object")
		}
		return func(doc []byte) ([]byte, error) {
			out, err := jsonpatch.MergePatch(doc, raw)
			if err != nil {
				return nil, badRequest("", "the patch can't be applied: %v", err)
			}
			return out, nil
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
