package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// Event is a change of an object.
type Event struct {
	Type   string // ADDED, MODIFIED, DELETED
	Object Object // or what stands in Table, if that was asked for
	Table  *Table
}

const (
	retryMin = 200 * time.Millisecond
	retryMax = 5 * time.Second
)

// Watch tells every change after a revision, until ctx ends or on fails. A watch that breaks off
// goes on where it was, however long the hub is away. When the hub no longer knows what was missed,
// the error is resource.Gone: list again.
func (c *Client) Watch(ctx context.Context, k Kind, o ListOptions, rev string, on func(Event) error) error {
	return c.watch(ctx, k, o, rev, "", on)
}

// WatchTables is Watch in the form of Tables with one row. Only the first of a connection has columns.
func (c *Client) WatchTables(ctx context.Context, k Kind, o ListOptions, rev string, on func(Event) error) error {
	return c.watch(ctx, k, o, rev, tableForm, on)
}

func (c *Client) watch(ctx context.Context, k Kind, o ListOptions, rev, accept string, on func(Event) error) error {
	s := stream{c: c, kind: k, options: o, rev: rev, table: accept != "", on: on}
	connected, told, pause := false, false, retryMin
	for {
		progress, err := s.run(ctx, accept)
		if progress {
			connected, told, pause = true, false, retryMin
		}
		switch {
		case ctx.Err() != nil && (connected || err == nil):
			return ctx.Err()
		case s.failed != nil:
			return s.failed
		case err != nil && (!connected || !errors.Is(err, resource.Unavailable)):
			return err
		case err != nil && !told:
			told = true
			c.Warn("the watch was interrupted, and goes on when the hub is back: " + err.Error())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, retryMax)
		}
	}
}

// stream is a watch and how far it is.
type stream struct {
	c       *Client
	kind    Kind
	options ListOptions
	rev     string
	table   bool
	on      func(Event) error
	failed  error // on's
}

// run reads one connection to its end. progress says that the hub answered.
func (s *stream) run(ctx context.Context, accept string) (progress bool, err error) {
	query := s.options.query()
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", s.rev)
	response, err := s.c.open(ctx, call{method: http.MethodGet, path: s.kind.path(s.options.Namespace, ""), query: query, accept: accept})
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

func (s *stream) event(kind string, text []byte) error {
	e := Event{Type: kind}
	switch {
	case kind == "ERROR":
		var st status
		if err := s.c.decode(text, &st); err != nil {
			return err
		}
		return st.err()
	case s.table:
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
