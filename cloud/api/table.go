package api

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/store"
)

// format is what a client wants to read.
type format struct {
	table   bool
	partial bool   // metadata only
	version string // of the group of Table and PartialObjectMetadata
	yaml    bool
	include string // of each object in a Table's rows: None, Object, or else its metadata
}

// partial is the kind of an object without anything but its metadata.
const partial = "PartialObjectMetadata"

// accepts finds the first form of Accept that can be served.
func accepts(r *http.Request) (format, error) {
	var f format
	if include := r.FormValue("includeObject"); include == "None" || include == "Object" {
		f.include = include
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return f, nil
	}
	for item := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(item))
		if err != nil {
			continue
		}
		meta := params["g"] == "meta.k8s.io" && (params["v"] == "v1" || params["v"] == "v1beta1")
		switch {
		case params["as"] == "Table" && meta:
			f.table, f.version = true, params["v"]
			return f, nil
		case (params["as"] == partial || params["as"] == partial+"List") && meta && media == "application/json":
			f.partial, f.version = true, params["v"]
			return f, nil
		case params["as"] != "":
		case media == "application/yaml":
			f.yaml = true
			return f, nil
		case media == "application/json", media == "application/*", media == "*/*":
			return f, nil
		}
	}
	return f, refuse(http.StatusNotAcceptable, "NotAcceptable", "only application/json (also as Table or PartialObjectMetadata) and application/yaml can be served")
}

// tableHead is what kubectl get prints, but for the rows.
type tableHead struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   listMeta `json:"metadata"`
	Columns    []tabCol `json:"columnDefinitions"`
}

type tabCol struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format"`
	Description string `json:"description"`
	Priority    int    `json:"priority"`
}

func (k *Kind) columns() []tabCol {
	var cols []tabCol
	if !k.Bare {
		cols = append(cols, tabCol{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."})
	}
	for _, c := range k.Columns {
		col := tabCol{Name: c.Name, Type: c.Type, Description: c.Description}
		if c.Wide {
			col.Priority = 1
		}
		cols = append(cols, col)
	}
	if k.Bare {
		return cols
	}
	return append(cols, tabCol{Name: "Age", Type: "string", Description: "Time since the object was created."})
}

// tabled says how a Table begins, and how its rows are written.
func (s *server) tabled(k *Kind, f format, meta listMeta) (begin tableHead, row appender) {
	begin = tableHead{Kind: "Table", APIVersion: "meta.k8s.io/" + f.version, Metadata: meta, Columns: k.columns()}
	return begin, appender{"rows", func(out []byte, o store.Object) ([]byte, error) { return s.appendRow(out, k, f, o) }}
}

func (s *server) appendRow(out []byte, k *Kind, f format, o store.Object) ([]byte, error) {
	p, ok := partsOf(o.Data)
	if !ok {
		return out, unreadable(o.Key)
	}
	typed, err := s.look(k, o)
	if err != nil {
		return out, err
	}
	cells, err := json.Marshal(s.cells(k, o.Name, p, typed))
	if err != nil {
		return out, err
	}
	out = append(append(out, `{"cells":`...), cells...)
	switch f.include {
	case "None":
	case "Object":
		if out, err = s.appendForm(append(out, `,"object":`...), k, o); err != nil {
			return out, err
		}
	default: // a Secret's annotations, which may be a copy of it, are sealed in the record, and so not among these
		out = append(appendMeta(f.beginPartial(append(out, `,"object":`...)), p.metadata, o.Rev), '}')
	}
	return append(out, '}'), nil
}

// beginPartial begins an object of which nothing but its metadata follows.
func (f format) beginPartial(out []byte) []byte {
	out = append(append(out, `{"kind":"`+partial+`","apiVersion":"meta.k8s.io/`...), f.version...)
	return append(out, `","metadata":`...)
}

// of is a form of an object, or so much of it as was asked for.
func (f format) of(form []byte) []byte {
	if !f.partial {
		return form
	}
	return append(append(f.beginPartial(nil), member(form, "metadata")...), '}')
}

// appendAs writes an object as it was asked for, but for Tables.
func (s *server) appendAs(out []byte, k *Kind, f format, o store.Object) ([]byte, error) {
	if !f.partial {
		return s.appendForm(out, k, o)
	}
	form, err := s.appendForm(nil, k, o)
	return append(out, f.of(form)...), err
}

func (s *server) cells(k *Kind, name string, p parts, typed any) (cells []any) {
	if !k.Bare {
		cells = append(cells, name)
	}
	if k.Cells != nil {
		cells = append(cells, k.Cells(typed)...)
	}
	if !k.Bare {
		var created *time.Time
		_ = json.Unmarshal(member(p.metadata, "creationTimestamp"), &created) // our own, if there is one
		cells = append(cells, created)
	}
	for i := range cells {
		if at, ok := cells[i].(*time.Time); ok {
			cells[i] = s.age(at)
		}
	}
	return cells
}

func (s *server) age(at *time.Time) string {
	if at == nil {
		return "<unknown>"
	}
	return duration.HumanDuration(max(s.Now().Sub(*at), 0))
}

// answer writes one object in the form that was asked for.
func (s *server) answer(w http.ResponseWriter, r *request, code int, o *object) error {
	for _, doubt := range slices.Concat(r.readings, r.doubts) {
		warn(w, "%s", doubt)
	}
	f, err := accepts(r.Request)
	if err != nil {
		return err
	}
	if f.table {
		data, err := s.data(o)
		if err != nil {
			return err
		}
		key := r.key
		key.Name = o.Metadata.Name // which may have been made
		return s.answerTable(w, r, f, code, store.Object{Key: key, Rev: o.rev, Data: data, Status: o.Status})
	}
	form, err := r.kind.form(o)
	if err != nil {
		return err
	}
	return write(w, f, code, f.of(form))
}

// answerStored writes one object as the store has it.
func (s *server) answerStored(w http.ResponseWriter, r *request, code int, o store.Object) error {
	f, err := accepts(r.Request)
	if err != nil {
		return err
	}
	if f.table {
		return s.answerTable(w, r, f, code, o)
	}
	form, err := s.appendAs(nil, r.kind, f, o)
	if err != nil {
		return err
	}
	return write(w, f, code, form)
}

func (s *server) answerTable(w http.ResponseWriter, r *request, f format, code int, o store.Object) error {
	var t bytes.Buffer
	head, row := s.tabled(r.kind, f, atRevision(o.Rev))
	if err := writeItems(&t, head, row, []store.Object{o}); err != nil {
		return err
	}
	return write(w, f, code, t.Bytes())
}

// atRevision is what the metadata of a list say of a revision.
func atRevision(rev uint64) (meta listMeta) {
	if rev > 0 {
		meta.ResourceVersion = strconv.FormatUint(rev, 10)
	}
	return meta
}

// write sends JSON, as YAML if that was asked for.
func write(w http.ResponseWriter, f format, code int, raw []byte) error {
	if !f.yaml {
		sendJSON(w, code, raw)
		return nil
	}
	raw, err := yaml.JSONToYAML(raw)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/yaml")
	w.WriteHeader(code)
	_, _ = w.Write(raw) // a client that went away needs no answer
	return nil
}
