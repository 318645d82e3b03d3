// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
)

// answerFormat is the form of an answer that a client asks for.
type answerFormat struct {
	table   bool
	partial bool   // metadata only
	version string // of the group of Table and PartialObjectMetadata
	yaml    bool
	include string // of each object in a Table's rows: None, Object, or else its metadata
}

// partialKind is the kind of an object that has nothing but metadata.
const partialKind = "PartialObjectMetadata"

// negotiateFormat finds the first form in Accept that can be served.
func negotiateFormat(r *http.Request) (answerFormat, error) {
	var f answerFormat
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
		case (params["as"] == partialKind || params["as"] == partialKind+"List") && meta && media == "application/json":
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
	return f, statusErrorf(http.StatusNotAcceptable, "NotAcceptable", "only application/json (also as Table or PartialObjectMetadata) and application/yaml can be served")
}

// encoder writes stored objects as clients see them.
type encoder struct {
	objects *objects.Registry
	now     func() time.Time
}

// answer answers with one object.
func (e *encoder) answer(w http.ResponseWriter, r *request, code int, o store.Object) (err error) {
	for _, warning := range slices.Concat(r.dialectWarnings, r.writtenWarnings()) {
		addWarning(w, "%s", warning)
	}
	var out []byte
	if r.format.table {
		out, err = e.appendTable(nil, r.kind, r.format, true, listMetaAt(o.Rev), o)
	} else {
		out, err = e.appendObject(nil, r.kind, r.format, o)
	}
	if err != nil {
		return err
	}
	return sendFormatted(w, r.format, code, out)
}

// sendFormatted answers with JSON, or with YAML if the client asks for it.
func sendFormatted(w http.ResponseWriter, f answerFormat, code int, raw []byte) error {
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
	_, _ = w.Write(raw) // the client may be gone
	return nil
}

// appendObject writes an object, or its metadata only.
func (e *encoder) appendObject(out []byte, k *Kind, f answerFormat, o store.Object) ([]byte, error) {
	if !f.partial {
		return e.appendForm(out, k, o)
	}
	form, err := e.appendForm(nil, k, o)
	return append(append(f.appendPartial(out), rawjson.Field(form, "metadata")...), '}'), err
}

// appendPartial begins an object of which only the metadata follows.
func (f answerFormat) appendPartial(out []byte) []byte {
	out = append(append(out, `{"kind":"`+partialKind+`","apiVersion":"meta.k8s.io/`...), f.version...)
	return append(out, `","metadata":`...)
}

// tableHead is a Table without its rows.
type tableHead struct {
	Kind       string        `json:"kind"`
	APIVersion string        `json:"apiVersion"`
	Metadata   listMeta      `json:"metadata"`
	Columns    []tableColumn `json:"columnDefinitions"`
}

type tableColumn struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format"`
	Description string `json:"description"`
	Priority    int    `json:"priority"`
}

// tableColumns are the columns of the kind's Tables.
func (k *Kind) tableColumns() []tableColumn {
	var columns []tableColumn
	for _, c := range k.Columns {
		column := tableColumn{Name: c.Name, Type: c.Type, Description: c.Description}
		if c.Wide {
			column.Priority = 1
		}
		columns = append(columns, column)
	}
	if k.NoDefaultColumns {
		return columns
	}
	return slices.Concat(
		[]tableColumn{{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."}}, columns,
		[]tableColumn{{Name: "Age", Type: "string", Description: "Time since the object was created."}})
}

// table is the head of a Table, and the writer of its rows.
func (e *encoder) table(k *Kind, f answerFormat, meta listMeta) (tableHead, itemWriter) {
	head := tableHead{Kind: "Table", APIVersion: "meta.k8s.io/" + f.version, Metadata: meta, Columns: k.tableColumns()}
	return head, itemWriter{field: "rows", append: func(out []byte, o store.Object) ([]byte, error) { return e.appendRow(out, k, f, o) }}
}

// appendTable writes a Table, with or without column definitions.
func (e *encoder) appendTable(out []byte, k *Kind, f answerFormat, columns bool, meta listMeta, objects ...store.Object) ([]byte, error) {
	head, rows := e.table(k, f, meta)
	if !columns {
		head.Columns = nil
	}
	var t bytes.Buffer
	err := rows.write(&t, head, objects)
	return append(out, bytes.TrimSpace(t.Bytes())...), err
}

func (e *encoder) appendRow(out []byte, k *Kind, f answerFormat, o store.Object) ([]byte, error) {
	p, ok := objects.PartsOf(o.Data)
	if !ok {
		return out, errUnreadable(o.Key)
	}
	typed, err := e.decodeForTable(k, o)
	if err != nil {
		return out, err
	}
	cells, err := json.Marshal(e.cells(k, o.Name, p, typed))
	if err != nil {
		return out, err
	}
	out = append(append(out, `{"cells":`...), cells...)
	switch f.include {
	case "None":
	case "Object":
		if out, err = e.appendForm(append(out, `,"object":`...), k, o); err != nil {
			return out, err
		}
	default: // annotations of a Secret, which may have a copy of it, are not in the record's metadata
		out = append(appendMetadata(f.appendPartial(append(out, `,"object":`...)), p.Metadata, o.Rev), '}')
	}
	return append(out, '}'), nil
}

func (e *encoder) cells(k *Kind, name string, p objects.RecordParts, typed any) (cells []any) {
	if !k.NoDefaultColumns {
		cells = append(cells, name)
	}
	if k.Cells != nil {
		cells = append(cells, k.Cells(typed)...)
	}
	if !k.NoDefaultColumns {
		var created *time.Time
		_ = json.Unmarshal(rawjson.Field(p.Metadata, "creationTimestamp"), &created) // our own, if there is one
		cells = append(cells, created)
	}
	for i, value := range cells {
		switch v := value.(type) {
		case *time.Time:
			cells[i] = e.age(v)
		case timestamp:
			cells[i] = cmp.Or(e.ago(string(v)), httpserver.NoValue)
		case string:
			cells[i] = cmp.Or(v, httpserver.NoValue)
		}
	}
	return cells
}

func (e *encoder) age(at *time.Time) string {
	if at == nil {
		return "<unknown>"
	}
	return duration.HumanDuration(max(e.now().Sub(*at), 0))
}

// timestamp is a time as a status has it. A table shows how long ago that is.
type timestamp string

// ago is the age of a time that a status has as text; a time to come is how long it is until then. Other text stays as it is.
func (e *encoder) ago(text string) string {
	at, err := time.Parse(time.RFC3339Nano, text)
	switch left := at.Sub(e.now()); {
	case err != nil:
		return text
	case left > 0:
		return "in " + duration.HumanDuration(left)
	default:
		return duration.HumanDuration(-left)
	}
}
