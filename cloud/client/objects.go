package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/edgebus/edgebus/topics/resource"
)

// Object is any object: what all have in common, and the whole as JSON.
type Object struct {
	resource.TypeMeta
	Metadata resource.Meta
	JSON     json.RawMessage
}

// UnmarshalJSON keeps the whole text.
func (o *Object) UnmarshalJSON(text []byte) error {
	var head struct {
		resource.TypeMeta
		Metadata resource.Meta `json:"metadata"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	*o = Object{head.TypeMeta, head.Metadata, append(json.RawMessage(nil), text...)}
	return nil
}

// MarshalJSON is the whole text.
func (o Object) MarshalJSON() ([]byte, error) { return o.JSON, nil }

// Tree is the object as a tree; numbers are as they were written.
func (o Object) Tree() (map[string]any, error) {
	var tree map[string]any
	d := json.NewDecoder(bytes.NewReader(o.JSON))
	d.UseNumber()
	err := d.Decode(&tree)
	return tree, err
}

// Into reads the object into a type of one's own.
func (o Object) Into(v any) error { return json.Unmarshal(o.JSON, v) }

// ListOptions say which objects of a kind are meant.
type ListOptions struct {
	Namespace string // empty: all
	Labels    string // a label selector
	Fields    string // a field selector
	Page      int    // objects in one answer; 0: 500
	Whole     bool   // rows of Tables have their objects, not only the metadata of these
}

func (o ListOptions) query() url.Values {
	q := url.Values{}
	if o.Labels != "" {
		q.Set("labelSelector", o.Labels)
	}
	if o.Fields != "" {
		q.Set("fieldSelector", o.Fields)
	}
	if o.Whole {
		q.Set("includeObject", "Object")
	}
	return q
}

// Table is objects as the hub would have people see them.
type Table struct {
	Metadata listMeta `json:"metadata"`
	Columns  []Column `json:"columnDefinitions"`
	Rows     []Row    `json:"rows"`
}

// Column is a column of a Table; one with a priority is for wide tables only.
type Column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Format   string `json:"format"` // name: of the object
	Priority int    `json:"priority"`
}

// Row is an object in a Table. Its Object has metadata only, unless ListOptions.Whole asked for all of it.
type Row struct {
	Cells  []any  `json:"cells"`
	Object Object `json:"object"`
}

type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

const tableForm = "application/json;as=Table;v=v1;g=meta.k8s.io"

// Object reads one object.
func (c *Client) Object(ctx context.Context, k Kind, namespace, name string) (o Object, err error) {
	err = c.read(ctx, k, namespace, name, "", &o)
	return o, err
}

// Row reads one object as a Table with one row.
func (c *Client) Row(ctx context.Context, k Kind, namespace, name string) (t Table, err error) {
	err = c.read(ctx, k, namespace, name, tableForm, &t)
	return t, err
}

func (c *Client) read(ctx context.Context, k Kind, namespace, name, accept string, into any) error {
	text, err := c.ask(ctx, call{method: http.MethodGet, path: k.path(namespace, name), accept: accept})
	if err != nil {
		return err
	}
	return c.decode(text, into)
}

// List reads all objects that are meant, page by page, and returns the revision of them all: a watch
// can go on from there.
func (c *Client) List(ctx context.Context, k Kind, o ListOptions, page func([]Object) error) (rev string, err error) {
	return c.pages(ctx, k, o, "", func(text []byte) (listMeta, error) {
		var list struct {
			Metadata listMeta `json:"metadata"`
			Items    []Object `json:"items"`
		}
		if err := c.decode(text, &list); err != nil {
			return list.Metadata, err
		}
		for i := range list.Items { // as others' servers leave it out
			list.Items[i].APIVersion, list.Items[i].Kind = k.APIVersion(), k.Name
		}
		return list.Metadata, page(list.Items)
	})
}

// Tables is List in the form of Tables.
func (c *Client) Tables(ctx context.Context, k Kind, o ListOptions, page func(Table) error) (rev string, err error) {
	return c.pages(ctx, k, o, tableForm, func(text []byte) (listMeta, error) {
		var t Table
		if err := c.decode(text, &t); err != nil {
			return t.Metadata, err
		}
		return t.Metadata, page(t)
	})
}

func (c *Client) pages(ctx context.Context, k Kind, o ListOptions, accept string, each func([]byte) (listMeta, error)) (string, error) {
	if o.Page == 0 {
		o.Page = 500
	}
	query := o.query()
	query.Set("limit", strconv.Itoa(o.Page))
	for {
		text, err := c.ask(ctx, call{method: http.MethodGet, path: k.path(o.Namespace, ""), query: query, accept: accept})
		if err != nil {
			return "", err
		}
		meta, err := each(text)
		if err != nil || meta.Continue == "" {
			return meta.ResourceVersion, err
		}
		query.Set("continue", meta.Continue)
	}
}

// WriteOptions say how to write.
type WriteOptions struct {
	DryRun bool // say what would be, and change nothing
	Strict bool // fields that the kind doesn't have are an error
}

func (c *Client) writing(o WriteOptions) url.Values {
	q := url.Values{"fieldManager": {c.Manager}}
	if o.DryRun {
		q.Set("dryRun", "All")
	}
	if o.Strict {
		q.Set("fieldValidation", "Strict")
	}
	return q
}

// Create makes an object that isn't there yet.
func (c *Client) Create(ctx context.Context, k Kind, namespace string, body []byte, o WriteOptions) (Object, error) {
	return c.write(ctx, call{
		method: http.MethodPost, path: k.path(namespace, ""), query: c.writing(o), form: "application/json", body: body,
	})
}

// Patch merges a patch into an object (RFC 7396).
func (c *Client) Patch(ctx context.Context, k Kind, namespace, name string, patch []byte, o WriteOptions) (Object, error) {
	return c.write(ctx, call{
		method: http.MethodPatch, path: k.path(namespace, name), query: c.writing(o),
		form: "application/merge-patch+json", body: patch,
	})
}

func (c *Client) write(ctx context.Context, r call) (o Object, err error) {
	text, err := c.ask(ctx, r)
	if err != nil {
		return o, err
	}
	err = c.decode(text, &o)
	return o, err
}

// Delete deletes an object, or begins to: one that has to wait for something is returned as it is now.
func (c *Client) Delete(ctx context.Context, k Kind, namespace, name string, o WriteOptions) (left *Object, err error) {
	q := url.Values{}
	if o.DryRun {
		q.Set("dryRun", "All")
	}
	got, err := c.write(ctx, call{method: http.MethodDelete, path: k.path(namespace, name), query: q})
	if err != nil || got.Kind == "Status" {
		return nil, err
	}
	return &got, nil
}
