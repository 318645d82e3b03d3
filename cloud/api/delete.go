// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/api/protobuf"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/topics/resource"
)

type deleteOptions struct {
	Kind          string `json:"kind"`
	Preconditions struct {
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"preconditions"`
	DryRun            []string `json:"dryRun"`
	PropagationPolicy *string  `json:"propagationPolicy"`
	OrphanDependents  *bool    `json:"orphanDependents"`
}

// deleteOptions reads the options of a deletion, and whether it is only to be tried.
func (r *request) deleteOptions() (opts deleteOptions, dry bool, err error) {
	if policy := r.FormValue("propagationPolicy"); policy != "" {
		opts.PropagationPolicy = &policy
	}
	if r.ContentLength != 0 {
		raw, err := readBody(r.Request, r.media, protobuf.MediaType)
		if err != nil {
			return opts, false, err
		}
		if r.media == protobuf.MediaType {
			if raw, err = protobuf.DeleteOptions(raw); err != nil {
				return opts, false, badRequest("", "%v", err)
			}
		}
		if err := json.Unmarshal(raw, &opts); err != nil {
			return opts, false, badFieldError(err)
		}
		if opts.Kind != "" && opts.Kind != "DeleteOptions" { // an object, perhaps, that its client takes for a write of it
			return opts, false, badRequest("kind", "the body of a DELETE is DeleteOptions, or empty, not %.40q", opts.Kind)
		}
	}
	if err := opts.checkPropagation(); err != nil {
		return opts, false, err
	}
	dry, err = dryRun(append(opts.DryRun, r.Form["dryRun"]...))
	return opts, dry, err
}

// checkPropagation refuses unknown policies. The known ones make no difference: nothing is deleted because its owner is.
func (o deleteOptions) checkPropagation() error {
	switch {
	case o.PropagationPolicy == nil:
		return nil
	case o.OrphanDependents != nil:
		return resource.Errorf(resource.Invalid, "propagationPolicy", "orphanDependents and propagationPolicy can't be set both")
	case !slices.Contains([]string{"Orphan", "Background", "Foreground"}, *o.PropagationPolicy):
		return resource.Errorf(resource.Invalid, "propagationPolicy", "%.40q: must be Background, Foreground or Orphan", *o.PropagationPolicy)
	}
	return nil
}

// delete serves DELETE of an object.
func (ow *objectWriter) delete(w http.ResponseWriter, r *request) error {
	opts, dry, err := r.deleteOptions()
	if err != nil {
		return err
	}
	left, err := ow.deleteObject(w, r, opts, dry)
	if err != nil {
		return err
	}
	ends := "deleted"
	if len(left.Metadata.Finalizers) > 0 {
		ends = "being deleted"
	}
	if r.ownPath { // flightctl's clients read nothing but a Status
		writeJSON(w, http.StatusOK, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: v1beta1}, Status: metav1.StatusSuccess, Code: http.StatusOK, Reason: "OK", Message: r.key.Name + " is " + ends,
		})
		return nil
	}
	if len(left.Metadata.Finalizers) > 0 {
		record, err := ow.objects.Encode(r.key, left)
		if err != nil {
			return err
		}
		return ow.encoder.answer(w, r, http.StatusOK, record)
	}
	writeJSON(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: r.key.Name, Group: r.kind.Group, Kind: r.kind.Plural, UID: types.UID(left.Metadata.UID)},
	})
	return nil
}

// deleteCollection serves DELETE of what the selectors match. It is no transaction: objects are deleted one by one, and
// those that are created meanwhile stay.
func (ow *objectWriter) deleteCollection(w http.ResponseWriter, r *request) error {
	opts, dry, err := r.deleteOptions()
	if err != nil {
		return err
	}
	sel, err := ow.lister.selector(r)
	if err != nil {
		return err
	}
	page, err := r.listOptions()
	if err != nil {
		return err
	}
	found, meta, err := ow.lister.collect(r, page, sel)
	if err != nil {
		return err
	}
	items := []json.RawMessage{}
	for _, o := range found {
		one := &request{Request: r.Request, kind: r.kind, key: o.Key}
		left, err := ow.deleteObject(w, one, opts, dry)
		if errors.Is(err, resource.NotFound) {
			continue // deleted by another client
		}
		if err != nil {
			return err
		}
		form, err := r.kind.form(left)
		if err != nil {
			return err
		}
		items = append(items, form)
	}
	writeJSON(w, http.StatusOK, struct {
		listHead
		Items []json.RawMessage `json:"items"`
	}{r.kind.listHead(meta), items})
	return nil
}

// deleteObject deletes an object, or marks it as deleted if something has to happen first. It returns the object as it is
// left, or as it was.
func (ow *objectWriter) deleteObject(w http.ResponseWriter, r *request, opts deleteOptions, dry bool) (*objects.Object, error) {
	write := &objects.WriteOptions{DryRun: dry, Force: httpserver.IsQueryTrue(r.Form, "force")}
	left, err := ow.objects.Delete(r.Context(), r.key, write, func(old *objects.Object) error {
		err := ow.checkHas(r, old)
		if uid := opts.Preconditions.UID; err == nil && uid != "" {
			err = r.checkIdentity(old, resource.Meta{UID: uid})
		}
		if err == nil {
			err = r.checkRevision(opts.Preconditions.ResourceVersion, old)
		}
		return err
	})
	for _, warning := range write.Warnings {
		addWarning(w, "%s", warning)
	}
	return left, r.about(r.key.Name, err)
}
