package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

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
	sel, err := r.selector()
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
	if r.ContentLength == 0 {
		return opts, nil
	}
	raw, _, err := body(r.Request)
	if err != nil || string(raw) == "null" {
		return opts, err
	}
	if err := json.Unmarshal(raw, &opts); err != nil {
		return opts, badField(err)
	}
	return opts, nil
}

// access answers kubectl auth can-i and those who ask before they try. Whoever reaches the API may do
// what it can do.
func (s *server) access(w http.ResponseWriter, r *http.Request) error {
	r.Form = r.URL.Query()
	raw, _, err := body(r, protobufType)
	if err != nil {
		return err
	}
	review := dict{"spec": dict{}} // of one in protobuf; what it asks makes no difference
	if r.Header.Get("Content-Type") != protobufType {
		if err := json.Unmarshal(raw, &review); err != nil || review == nil {
			return badRequest("", "the body must be a SelfSubjectAccessReview")
		}
	}
	review["apiVersion"], review["kind"] = strings.TrimPrefix(accessRoot, "/apis/"), "SelfSubjectAccessReview"
	review["status"] = dict{"allowed": true, "reason": "whoever reaches this API may use all of it"}
	writeJSON(w, http.StatusCreated, review)
	return nil
}

const accessRoot = "/apis/authorization.k8s.io/v1"
