// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kind is a kind of object that the hub serves.
type Kind struct {
	Group, Version         string
	Name, Plural, Singular string
	Short                  []string
	Namespaced             bool
	Verbs                  []string
	Categories             []string // under which several kinds are asked for at once: all
}

// APIVersion is the apiVersion of the kind's objects.
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Qualified is the kind's name with its group: devices.edgebus.io.
func (k Kind) Qualified() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Can is whether the hub does something with objects of the kind: list, watch, create, …
func (k Kind) Can(verb string) bool { return slices.Contains(k.Verbs, verb) }

// called is whether it is a name of the kind.
func (k Kind) called(name string) bool {
	names := append([]string{k.Plural, k.Singular, strings.ToLower(k.Name), k.Qualified(), k.Plural + "." + k.Version + "." + k.Group}, k.Short...)
	return slices.Contains(names, strings.ToLower(name))
}

// path is the path of all objects, of those of a namespace, or of one object.
func (k Kind) path(namespace, name string) string {
	path := "/apis/" + k.APIVersion()
	if k.Group == "" {
		path = "/api/" + k.Version
	}
	if k.Namespaced && namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	path += "/" + k.Plural
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path
}

// apiDiscovery is the aggregated form of discovery.
type apiDiscovery struct {
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Versions []struct {
			Version   string `json:"version"`
			Resources []struct {
				Resource     string                `json:"resource"`
				ResponseKind struct{ Kind string } `json:"responseKind"`
				Scope        string                `json:"scope"`
				Singular     string                `json:"singularResource"`
				Verbs        []string              `json:"verbs"`
				Short        []string              `json:"shortNames"`
				Categories   []string              `json:"categories"`
			} `json:"resources"`
		} `json:"versions"`
	} `json:"items"`
}

const discoveryMediaType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Kinds are what the hub serves, the canonical group before others' forms of the same objects. It is
// asked once.
func (c *Client) Kinds(ctx context.Context) ([]Kind, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds != nil {
		return c.kinds, nil
	}
	var all []Kind
	for _, path := range []string{"/apis", "/api"} {
		var d apiDiscovery
		err := c.do(ctx, request{method: http.MethodGet, path: path, accept: discoveryMediaType}, &d)
		if errors.Is(err, resource.NotFound) {
			return nil, c.notAHub()
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d.kinds()...)
	}
	if len(all) == 0 {
		return nil, c.notAHub()
	}
	rank := map[string]int{resource.Group: -2, "": -1}
	slices.SortStableFunc(all, func(a, b Kind) int { return rank[a.Group] - rank[b.Group] })
	c.kinds = all
	return all, nil
}

func (d apiDiscovery) kinds() (all []Kind) {
	for _, group := range d.Items {
		for _, v := range group.Versions {
			for _, r := range v.Resources {
				all = append(all, Kind{
					Group: group.Metadata.Name, Version: v.Version, Name: r.ResponseKind.Kind, Plural: r.Resource,
					Singular: r.Singular, Short: r.Short, Namespaced: r.Scope == "Namespaced", Verbs: r.Verbs, Categories: r.Categories,
				})
			}
		}
	}
	return all
}

// Kind finds a kind by any of its names: device, devices, dev, Device or devices.edgebus.io.
func (c *Client) Kind(ctx context.Context, name string) (Kind, error) {
	return c.find(ctx, name, func(k Kind) bool { return k.called(name) })
}

// KindOf finds the kind by an object's apiVersion and kind.
func (c *Client) KindOf(ctx context.Context, o resource.TypeMeta) (Kind, error) {
	k, err := c.find(ctx, o.Kind+" of "+o.APIVersion, func(k Kind) bool { return k.Name == o.Kind && k.APIVersion() == o.APIVersion })
	if !errors.Is(err, resource.NotFound) {
		return k, err
	}
	all, listErr := c.Kinds(ctx)
	if listErr != nil {
		return k, err
	}
	var versions, names []string
	for _, known := range all {
		names = append(names, known.Name)
		if known.Name == o.Kind {
			versions = append(versions, known.APIVersion())
		}
	}
	if len(versions) > 0 {
		return k, resource.Errorf(resource.NotFound, "", "the hub knows no kind %s of %s: its apiVersion is %s", o.Kind, o.APIVersion, strings.Join(versions, ", or "))
	}
	if near := resource.DidYouMean(o.Kind, names); near != "" {
		return k, resource.Errorf(resource.NotFound, "", "the hub knows no kind %s of %s%s", o.Kind, o.APIVersion, near)
	}
	return k, err
}

func (c *Client) find(ctx context.Context, name string, is func(Kind) bool) (Kind, error) {
	all, err := c.Kinds(ctx)
	if err != nil {
		return Kind{}, err
	}
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], nil
	}
	var known, names []string
	for _, k := range Canonical(all) {
		known = append(known, k.Plural)
		names = append(append(names, k.Plural, k.Singular), k.Short...)
	}
	if !slices.ContainsFunc(all, func(k Kind) bool { return k.Group == resource.Group }) {
		return Kind{}, resource.Errorf(resource.NotFound, "", "%s is an API server, but no hub: it has no kind of %s. Is it the right one (--context, --server)?", c.Server, resource.Group)
	}
	return Kind{}, resource.Errorf(resource.NotFound, "", "the hub knows no kind %s; it knows %s%s", name, strings.Join(known, ", "), resource.DidYouMean(name, names))
}

// Canonical leaves one form of every kind: the first, which is the hub's own.
func Canonical(all []Kind) []Kind {
	seen := map[string]bool{}
	var own []Kind
	for _, k := range all {
		if !seen[k.Name] {
			own = append(own, k)
		}
		seen[k.Name] = true
	}
	return own
}

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

// ListOptions select objects of a kind.
type ListOptions struct {
	Namespace string // empty: all
	Labels    string // a label selector
	Fields    string // a field selector
	Order     string // by a field, such as metadata.name: the hub's index answers, with what is there now
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
	if o.Order != "" {
		q.Set("order", o.Order)
	}
	if o.Whole {
		q.Set("includeObject", "Object")
	}
	return q
}

// Table is objects in the form that the hub made for people.
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
	Remaining       int    `json:"remainingItemCount"`
}

const tableMediaType = "application/json;as=Table;v=v1;g=meta.k8s.io"

// Object reads one object.
func (c *Client) Object(ctx context.Context, k Kind, namespace, name string) (o Object, err error) {
	err = c.do(ctx, request{method: http.MethodGet, path: k.path(namespace, name)}, &o)
	return o, err
}

// Row reads one object as a Table with one row. With whole the row has all of the object.
func (c *Client) Row(ctx context.Context, k Kind, namespace, name string, whole bool) (t Table, err error) {
	err = c.do(ctx, request{method: http.MethodGet, path: k.path(namespace, name), query: ListOptions{Whole: whole}.query(), accept: tableMediaType}, &t)
	return t, err
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
	return c.pages(ctx, k, o, tableMediaType, func(text []byte) (listMeta, error) {
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
	for offset := 0; ; offset += o.Page {
		if o.Order != "" {
			query.Set("offset", strconv.Itoa(offset))
		}
		text, err := c.ask(ctx, request{method: http.MethodGet, path: k.path(o.Namespace, ""), query: query, accept: accept})
		if err != nil {
			return "", err
		}
		meta, err := each(text)
		switch {
		case err != nil, meta.Continue == "" && (o.Order == "" || meta.Remaining == 0):
			return meta.ResourceVersion, err
		case meta.Continue != "":
			query.Set("continue", meta.Continue)
		}
	}
}

// WriteOptions are the options of a write.
type WriteOptions struct {
	DryRun bool // check, and change nothing
	Strict bool // unknown fields are an error
	Force  bool // delete what is in use
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

// Create creates an object.
func (c *Client) Create(ctx context.Context, k Kind, namespace string, body []byte, o WriteOptions) (made Object, err error) {
	err = c.do(ctx, request{method: http.MethodPost, path: k.path(namespace, ""), query: c.writing(o), form: "application/json", body: body}, &made)
	return made, err
}

// Patch merges a patch into an object (RFC 7396).
func (c *Client) Patch(ctx context.Context, k Kind, namespace, name string, patch map[string]any, o WriteOptions) (after Object, err error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return after, err
	}
	err = c.do(ctx, request{method: http.MethodPatch, path: k.path(namespace, name), query: c.writing(o), form: "application/merge-patch+json", body: body}, &after)
	return after, err
}

// Delete deletes an object. If it has finalizers, its deletion begins, and it is returned.
func (c *Client) Delete(ctx context.Context, k Kind, namespace, name string, o WriteOptions) (left *Object, err error) {
	q := url.Values{}
	if o.DryRun {
		q.Set("dryRun", "All")
	}
	if o.Force {
		q.Set("force", "true")
	}
	var got Object
	err = c.do(ctx, request{method: http.MethodDelete, path: k.path(namespace, name), query: q}, &got)
	if err != nil || got.Kind == "Status" {
		return nil, err
	}
	return &got, nil
}

// Event is a change of an object.
type Event struct {
	Type   string // ADDED, MODIFIED, DELETED
	Object Object // or what stands in Table, if that was asked for
	Table  *Table
}

// watchRetry is the wait before a watch is connected again.
var watchRetry = backoff.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}

// Watch calls on for every change after a revision, until ctx ends or on fails. When a connection ends, the watch
// continues where it was, however long the hub is unreachable. When the hub no longer knows what was missed,
// the error is resource.Gone: list again.
func (c *Client) Watch(ctx context.Context, k Kind, o ListOptions, rev string, on func(Event) error) error {
	return c.watch(ctx, &watchStream{c: c, kind: k, options: o, rev: rev, on: on})
}

// WatchTables is Watch in the form of Tables with one row. Only the first of a connection has columns.
func (c *Client) WatchTables(ctx context.Context, k Kind, o ListOptions, rev string, on func(Event) error) error {
	return c.watch(ctx, &watchStream{c: c, kind: k, options: o, rev: rev, accept: tableMediaType, on: on})
}

func (c *Client) watch(ctx context.Context, s *watchStream) error {
	connected, warned, failures := false, false, 0
	for {
		progress, err := s.run(ctx)
		if progress {
			connected, warned, failures = true, false, 0
		}
		switch {
		case ctx.Err() != nil && (connected || err == nil):
			return ctx.Err()
		case s.failed != nil:
			return s.failed
		case err != nil && (!connected || !errors.Is(err, resource.Unavailable)):
			return err
		case err != nil && !warned:
			warned = true
			c.Warn("the watch was interrupted, and continues when the hub is back: " + err.Error())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchRetry.Wait(failures)):
			failures++
		}
	}
}

// watchStream is a watch and its revision.
type watchStream struct {
	c       *Client
	kind    Kind
	options ListOptions
	rev     string
	accept  string // empty: objects, not Tables
	on      func(Event) error
	failed  error // on's
}

// run reads one connection to its end. progress is whether the hub answered.
func (s *watchStream) run(ctx context.Context) (progress bool, err error) {
	query := s.options.query()
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", s.rev)
	response, err := s.c.open(ctx, request{method: http.MethodGet, path: s.kind.path(s.options.Namespace, ""), query: query, accept: s.accept})
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	for lines := json.NewDecoder(bufio.NewReader(response.Body)); ; {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			return true, nil // its time was up
		}
		if err != nil {
			return true, s.c.unreachable(ctx, err)
		}
		if err := s.event(e.Type, e.Object); err != nil {
			return true, err
		}
	}
}

func (s *watchStream) event(kind string, text []byte) error {
	e := Event{Type: kind}
	switch {
	case kind == "ERROR":
		var st apiStatus
		if err := s.c.decode(text, &st); err != nil {
			return err
		}
		return st.err()
	case s.accept == tableMediaType:
		e.Table = new(Table)
		if err := s.c.decode(text, e.Table); err != nil {
			return err
		}
		s.rev = e.Table.Metadata.ResourceVersion
	default:
		if err := s.c.decode(text, &e.Object); err != nil {
			return err
		}
		s.rev = e.Object.Metadata.ResourceVersion
	}
	if kind == "BOOKMARK" {
		return nil
	}
	s.failed = s.on(e)
	return s.failed
}
