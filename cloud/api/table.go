package api

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/resource"
)

// format is what a client wants to read.
type format struct {
	table   bool
	version string // of Table
	yaml    bool
	include string // of each object in a Table's rows
}

// accepts finds the first form of Accept that can be served.
func accepts(r *http.Request) (format, error) {
	f := format{include: r.FormValue("includeObject")}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return f, nil
	}
	for item := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(item))
		if err != nil {
			continue
		}
		switch {
		case params["as"] == "Table" && params["g"] == "meta.k8s.io" && (params["v"] == "v1" || params["v"] == "v1beta1"):
			f.table, f.version = true, params["v"]
			return f, nil
		case params["as"] != "":
		case media == "application/yaml":
			f.yaml = true
			return f, nil
		case media == "application/json", media == "application/*", media == "*/*":
			return f, nil
		}
	}
	return f, refuse(http.StatusNotAcceptable, "NotAcceptable", "only application/json (also as Table) and application/yaml can be served")
}

// Table is what kubectl get prints.
type Table struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   listMeta `json:"metadata"`
	Columns    []tabCol `json:"columnDefinitions"`
	Rows       []tabRow `json:"rows"`
}

type tabCol struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format"`
	Description string `json:"description"`
	Priority    int    `json:"priority"`
}

type tabRow struct {
	Cells  []any `json:"cells"`
	Object any   `json:"object,omitempty"`
}

type partial struct {
	Kind       string        `json:"kind"`
	APIVersion string        `json:"apiVersion"`
	Metadata   resource.Meta `json:"metadata"`
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

// table puts objects into a Table.
func (s *server) table(k *Kind, f format, meta listMeta, objects []*object) (Table, error) {
	t := Table{Kind: "Table", APIVersion: "meta.k8s.io/" + f.version, Metadata: meta, Columns: k.columns(), Rows: []tabRow{}}
	for _, o := range objects {
		row, err := s.row(k, f, o)
		if err != nil {
			return t, err
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func (s *server) row(k *Kind, f format, o *object) (tabRow, error) {
	typed, err := k.typed(o)
	if err != nil {
		return tabRow{}, err
	}
	row := tabRow{Cells: s.cells(k, o, typed)}
	switch f.include {
	case "None":
	case "Object":
		if row.Object, err = k.form(o); err != nil {
			return row, err
		}
	default:
		meta := o.Metadata
		if k.Sealed {
			meta.Annotations = nil // one may be a copy of the object
		}
		row.Object = partial{"PartialObjectMetadata", "meta.k8s.io/" + f.version, meta}
	}
	return row, nil
}

func (s *server) cells(k *Kind, o *object, typed any) (cells []any) {
	if !k.Bare {
		cells = append(cells, o.Metadata.Name)
	}
	if k.Cells != nil {
		cells = append(cells, k.Cells(typed)...)
	}
	if !k.Bare {
		cells = append(cells, o.Metadata.CreationTimestamp)
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
	return duration(s.Now().Sub(*at))
}

// duration writes a time span in the two units that matter most.
func duration(d time.Duration) string {
	d = max(d, 0)
	days := int(d / (24 * time.Hour))
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return two(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 8*time.Hour:
		return two(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	case days < 2:
		return fmt.Sprintf("%dh", int(d.Hours()))
	case days < 8:
		return two(days, "d", int(d.Hours())%24, "h")
	case days < 2*365:
		return fmt.Sprintf("%dd", days)
	}
	return two(days/365, "y", days%365, "d")
}

func two(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unitA)
	}
	return fmt.Sprintf("%d%s%d%s", a, unitA, b, unitB)
}

// answer writes one object in the form that was asked for.
func (s *server) answer(w http.ResponseWriter, r *request, code int, o *object) error {
	f, err := accepts(r.Request)
	if err != nil {
		return err
	}
	if f.table {
		t, err := s.table(r.kind, f, listMeta{ResourceVersion: o.Metadata.ResourceVersion}, []*object{o})
		if err != nil {
			return err
		}
		writeJSON(w, code, t)
		return nil
	}
	form, err := r.kind.form(o)
	if err != nil {
		return err
	}
	return write(w, f, code, form)
}

func write(w http.ResponseWriter, f format, code int, v any) error {
	if !f.yaml {
		writeJSON(w, code, v)
		return nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if raw, err = yaml.JSONToYAML(raw); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/yaml")
	w.WriteHeader(code)
	_, _ = w.Write(raw) // a client that went away needs no answer
	return nil
}
