package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
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

type listHead struct {
	resource.TypeMeta
	Metadata listMeta `json:"metadata"`
}

// load reads one object, which must concern the user.
func (s *server) load(r *request) (*object, error) {
	stored, err := s.Reader.Get(r.Context(), r.key)
	if err != nil {
		return nil, r.about(r.key.Name, err)
	}
	o, err := s.fromStore(stored)
	if err != nil {
		return nil, err
	}
	if a := accessIn(r.Context()); !s.sees(r.Context(), a, r.kind, o) {
		return nil, r.forbidden(a, r.key.Name)
	}
	return o, nil
}

func (s *server) get(w http.ResponseWriter, r *request) error {
	stored, err := s.Reader.Get(r.Context(), r.key)
	if err != nil {
		return r.about(r.key.Name, err)
	}
	if a := accessIn(r.Context()); !s.seesStored(r.Context(), a, r.kind, stored) {
		return r.forbidden(a, r.key.Name)
	}
	return s.answerStored(w, r, http.StatusOK, stored)
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

// checkMatch refuses what resourceVersionMatch can't mean for a list.
func checkMatch(r *request, rev uint64) error {
	match := r.FormValue("resourceVersionMatch")
	wrong := func(why string) error { return resource.Errorf(resource.Invalid, "resourceVersionMatch", "%s", why) }
	switch {
	case match == "":
		return nil
	case match != "Exact" && match != "NotOlderThan":
		return wrong("must be Exact or NotOlderThan")
	case r.FormValue("continue") != "":
		return wrong("is not for a list that goes on")
	case r.FormValue("resourceVersion") == "":
		return wrong("needs a resourceVersion")
	case match == "Exact" && rev == 0:
		return wrong("Exact needs a resourceVersion other than 0")
	}
	return nil
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
	if err := checkMatch(r, rev); err != nil {
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
	sel, err := s.selector(r)
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
	if err := reached(r, meta); err != nil {
		return err
	}
	begin, item := s.listed(r.kind, f, meta)
	if f.table {
		begin, item = s.tabled(r.kind, f, meta)
	}
	if !f.yaml {
		return s.stream(w, begin, item, objects)
	}
	var all bytes.Buffer
	if err := writeItems(&all, begin, item, objects); err != nil {
		return err
	}
	return write(w, f, http.StatusOK, all.Bytes())
}

// reached refuses to answer with what is older than what was asked for, such as after a restore of an old backup.
func reached(r *request, meta listMeta) error {
	asked, err := revision(r.FormValue("resourceVersion"))
	if err != nil || r.FormValue("continue") != "" {
		return err
	}
	newest, _ := revision(meta.ResourceVersion) // our own
	if newest >= asked {
		return nil
	}
	return &httpError{
		code: http.StatusGatewayTimeout, reason: "Timeout",
		message: fmt.Sprintf("Too large resource version: %d, current: %d", asked, newest),
		details: &StatusDetails{Causes: []StatusCause{{Reason: "ResourceVersionTooLarge", Message: "Too large resource version"}}, RetryAfterSeconds: 1},
	}
}

// listed says how a list begins, and how its items are written.
func (s *server) listed(k *Kind, f format, meta listMeta) (begin any, item appender) {
	head := listHead{resource.TypeMeta{APIVersion: k.apiVersion(), Kind: k.Name + "List"}, meta}
	if f.partial {
		head.APIVersion, head.Kind = "meta.k8s.io/"+f.version, partial+"List"
	}
	return head, appender{"items", func(out []byte, o store.Object) ([]byte, error) { return s.appendAs(out, k, f, o) }}
}

// appender writes an item of a list, which has this name in it.
type appender struct {
	in   string
	item func(out []byte, o store.Object) ([]byte, error)
}

// writeItems writes head with a list of objects in it.
func writeItems(w io.Writer, head any, a appender, objects []store.Object) error {
	raw, err := json.Marshal(head)
	if err != nil {
		return err
	}
	out := append(append(append(raw[:len(raw)-1], `,"`...), a.in...), `":[`...)
	for i, o := range objects {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = a.item(out, o); err != nil {
			return err
		}
		if len(out) < listPiece {
			continue
		}
		if _, err := w.Write(out); err != nil {
			return nil //nolint:nilerr // a client that went away needs no answer
		}
		out = out[:0]
	}
	_, _ = w.Write(append(out, "]}\n"...))
	return nil
}

// listPiece is about how much of a list is in memory at once.
const listPiece = 64 << 10

// stream writes a list piece by piece.
func (s *server) stream(w http.ResponseWriter, head any, a appender, objects []store.Object) error {
	out := &started{ResponseWriter: w}
	err := writeItems(out, head, a, objects)
	if err != nil && out.yes {
		s.Log.Error().Err(err).Msg("a list can't be written on")
		panic(http.ErrAbortHandler) // too late for a Status: the client sees that it is cut off
	}
	return err
}

// started remembers whether an answer has begun.
type started struct {
	http.ResponseWriter
	yes bool
}

func (s *started) Write(p []byte) (int, error) {
	if !s.yes {
		s.Header().Set("Content-Type", "application/json")
		s.yes = true
	}
	return s.ResponseWriter.Write(p)
}

// collect reads pages of the store until it has as many objects that match as were asked for.
func (s *server) collect(r *request, opts store.ListOptions, sel selector) ([]store.Object, listMeta, error) {
	limit := opts.Limit
	opts.Name = r.only(sel).Name
	if !sel.empty() && limit > 0 {
		opts.Limit = max(limit, 500)
	}
	var objects []store.Object
	for {
		page, err := s.Reader.List(r.Context(), r.key.Kind, opts)
		if err != nil {
			return nil, listMeta{}, r.about("", err)
		}
		meta := listMeta{ResourceVersion: strconv.FormatUint(page.Rev, 10)}
		if objects == nil && sel.empty() {
			objects = make([]store.Object, 0, len(page.Items))
		}
		for i, stored := range page.Items {
			if matches, err := s.matches(sel, stored); err != nil {
				return nil, meta, err
			} else if !matches {
				continue
			}
			objects = append(objects, stored)
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
