package api

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

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
