package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

type listMeta struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Continue        string `json:"continue,omitempty"`
	Remaining       *int   `json:"remainingItemCount,omitempty"`
}

type list struct {
	resource.TypeMeta
	Metadata listMeta `json:"metadata"`
	Items    []any    `json:"items"`
}

// load reads one object.
func (s *server) load(r *request) (*object, error) {
	stored, err := s.Reader.Get(r.Context(), r.key)
	if err != nil {
		return nil, r.about(r.key.Name, err)
	}
	return s.fromStore(stored)
}

func (s *server) get(w http.ResponseWriter, r *request) error {
	o, err := s.load(r)
	if err != nil {
		return err
	}
	return s.answer(w, r, http.StatusOK, o)
}

// revision reads a resourceVersion; "" and "0" ask for none.
func revision(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	rev, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("resourceVersion", "resourceVersion %.40q is not one of ours", text)
	}
	return rev, nil
}

// token is where a list goes on. It names a revision: pages of one list belong together.
type token struct {
	Rev       uint64 `json:"r"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"n"`
}

func (t token) String() string {
	raw, _ := json.Marshal(t) // strings and a number
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseToken(text string) (t token, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Rev == 0 || t.Name == "" {
		return t, badRequest("", "continue is not a token of this server")
	}
	return t, nil
}

// listOptions reads what a list asks for.
func (s *server) listOptions(r *request) (opts store.ListOptions, err error) {
	opts.Namespace = r.key.Namespace
	if text := r.FormValue("limit"); text != "" {
		if opts.Limit, err = strconv.Atoi(text); err != nil || opts.Limit < 0 {
			return opts, badRequest("limit", "limit %.20q is not a number", text)
		}
	}
	rev, err := revision(r.FormValue("resourceVersion"))
	if err != nil {
		return opts, err
	}
	if text := r.FormValue("continue"); text != "" {
		t, err := parseToken(text)
		if err != nil {
			return opts, err
		}
		opts.Rev, opts.After = t.Rev, store.Key{Kind: r.key.Kind, Namespace: t.Namespace, Name: t.Name}
		return opts, nil
	}
	if r.FormValue("resourceVersionMatch") == "Exact" {
		opts.Rev = rev
	}
	return opts, nil
}

func (s *server) list(w http.ResponseWriter, r *request) error {
	f, err := accepts(r.Request)
	if err != nil {
		return err
	}
	sel, err := r.selector()
	if err != nil {
		return err
	}
	opts, err := s.listOptions(r)
	if err != nil {
		return err
	}
	objects, meta, err := s.collect(r, opts, sel)
	if err != nil {
		return err
	}
	if f.table {
		t, err := s.table(r.kind, f, meta, objects)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, t)
		return nil
	}
	out := list{resource.TypeMeta{APIVersion: r.kind.apiVersion(), Kind: r.kind.Name + "List"}, meta, make([]any, len(objects))}
	for i := range objects {
		if out.Items[i], err = r.kind.form(objects[i]); err != nil {
			return err
		}
	}
	return write(w, f, http.StatusOK, out)
}

// collect reads pages of the store until it has as many objects that match as were asked for.
func (s *server) collect(r *request, opts store.ListOptions, sel selector) ([]*object, listMeta, error) {
	limit := opts.Limit
	opts.Name = r.only(sel).Name
	if !sel.empty() && limit > 0 {
		opts.Limit = max(limit, 500)
	}
	objects := []*object{}
	for {
		page, err := s.Reader.List(r.Context(), r.key.Kind, opts)
		if err != nil {
			return nil, listMeta{}, r.about("", err)
		}
		meta := listMeta{ResourceVersion: strconv.FormatUint(page.Rev, 10)}
		for i, stored := range page.Items {
			o, err := s.fromStore(stored)
			if err != nil {
				return nil, meta, err
			}
			if !sel.matches(o) {
				continue
			}
			objects = append(objects, o)
			remaining := len(page.Items) - i - 1 + page.More
			if limit > 0 && len(objects) == limit && remaining > 0 {
				meta.Continue = token{page.Rev, stored.Namespace, stored.Name}.String()
				if sel.empty() {
					meta.Remaining = &remaining // of a selection nobody knows
				}
				return objects, meta, nil
			}
		}
		if page.More == 0 {
			return objects, meta, nil
		}
		opts.Rev, opts.After = page.Rev, page.Items[len(page.Items)-1].Key
	}
}
