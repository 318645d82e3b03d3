package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/edgebus/edgebus/topics/resource"
)

// deleteCollection deletes, or begins to, what the selectors match. It is no transaction: each object
// goes by itself, and what was created meanwhile stays.
func (s *server) deleteCollection(w http.ResponseWriter, r *request) error {
	opts, err := readDeleteOptions(r)
	if err != nil {
		return err
	}
	dry, err := dryRun(append(opts.DryRun, r.Form["dryRun"]...))
	if err != nil {
		return err
	}
	sel, err := s.selector(r)
	if err != nil {
		return err
	}
	page, err := s.listOptions(r)
	if err != nil {
		return err
	}
	objects, meta, err := s.collect(r, page, sel)
	if err != nil {
		return err
	}
	var out struct {
		listHead
		Items []json.RawMessage `json:"items"`
	}
	out.APIVersion, out.Kind, out.Metadata, out.Items = r.kind.apiVersion(), r.kind.Name+"List", meta, []json.RawMessage{}
	for _, o := range objects {
		one := &request{Request: r.Request, kind: r.kind, key: o.Key}
		left, err := s.deleteOne(w, one, opts, dry)
		if errors.Is(err, resource.NotFound) {
			continue // somebody was faster
		}
		if err != nil {
			return err
		}
		form, err := r.kind.form(left)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, form)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func readDeleteOptions(r *request) (opts deleteOptions, err error) {
	if policy := r.FormValue("propagationPolicy"); policy != "" {
		opts.PropagationPolicy = &policy
	}
	if r.ContentLength == 0 {
		return opts, opts.checkPropagation()
	}
	raw, _, err := body(r.Request, r.media)
	if err != nil || string(raw) == "null" {
		return opts, err
	}
	if err := json.Unmarshal(raw, &opts); err != nil {
		return opts, badField(err)
	}
	return opts, opts.checkPropagation()
}
