// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/topics/resource"
)

// transferTimeout is how long a client may send or read nothing.
const transferTimeout = time.Minute

// ServeHTTP answers /blobs and what is below it. It is for operators of all nodes, since contents may be the configuration
// of any node; a node may read what its own spec refers to.
//
//	GET    /blobs               all blobs
//	POST   /blobs               puts the body, and answers with its digest
//	PUT    /blobs/sha256:…      puts the body, which must have that digest
//	GET    /blobs/sha256:…      the content, or the Range of it
//	DELETE /blobs/sha256:…      removes it, if nothing refers to it
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, id broker.Identity) error {
	digest := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/blobs"), "/")
	if digest != "" {
		if _, err := resource.ParseDigest(digest); err != nil {
			return err
		}
		audit.NoteName(r, digest)
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case id.AllNodes():
	case id.Node != "" && reads && digest != "":
		if err := s.authorize(r.Context(), id.Node, digest); err != nil {
			return err
		}
	default:
		return resource.Errorf(resource.Forbidden, "", "blobs are for operators of all nodes; a node may read those that its spec refers to")
	}
	switch {
	case reads && digest == "":
		return httpserver.SendJSON(w, s.o.Store.List())
	case reads:
		if err := s.checkFetched(r.Context(), id, digest); err != nil {
			return err
		}
		return s.get(w, r, digest)
	case r.Method == http.MethodPost && digest == "", r.Method == http.MethodPut && digest != "":
		return s.put(w, r, digest)
	case r.Method == http.MethodDelete && digest != "":
		return httpserver.SendJSONOr(w, struct{}{}, s.o.Store.Remove(r.Context(), digest))
	}
	return resource.Errorf(resource.NotFound, "", "there is nothing at %s %s", r.Method, r.URL.Path)
}

// checkFetched fails for what was fetched from a Repository, if somebody asks who isn't signed in.
func (s *Server) checkFetched(ctx context.Context, id broker.Identity, digest string) error {
	if id.User != "" || s.o.Fetched == nil {
		return nil
	}
	fetched, err := s.o.Fetched(ctx, digest)
	if err == nil && fetched {
		err = resource.Errorf(resource.Forbidden, "", "the blob %s is from a Repository: its contents are for operators who are signed in, as one of auth.users", digest)
	}
	return err
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, digest string) error {
	b, err := s.o.Store.Open(digest)
	if err != nil {
		return err
	}
	defer b.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Security-Policy", "sandbox") // a browser must not run the content of a blob
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition", "attachment")
	w.Header().Set("ETag", `"`+digest+`"`)
	http.ServeContent(&deadlineWriter{ResponseWriter: w, rc: http.NewResponseController(w)}, r, "", time.Time{}, b)
	return nil
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, want string) error {
	began := time.Now()
	digest, size, err := s.o.Store.Put(r.Context(), deadlineReader{r.Body, http.NewResponseController(w)}, want)
	if err != nil {
		return err
	}
	s.o.Log.Info().Str("digest", digest).Int64("bytes", size).Stringer("took", time.Since(began).Round(time.Millisecond)).Msg("a blob was put")
	return httpserver.SendJSON(w, Info{Digest: digest, Size: size, LastPut: s.o.Store.o.Now().UTC().Truncate(time.Second)})
}

// deadlineWriter and deadlineReader let a transfer take as long as it takes, while something moves.
type deadlineWriter struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (p *deadlineWriter) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(transferTimeout)) // without deadlines there is no connection to hold
	return p.ResponseWriter.Write(b)
}

type deadlineReader struct {
	r  io.Reader
	rc *http.ResponseController
}

func (p deadlineReader) Read(b []byte) (int, error) {
	deadline := time.Now().Add(transferTimeout)
	_, _ = p.rc.SetReadDeadline(deadline), p.rc.SetWriteDeadline(deadline)
	return p.r.Read(b)
}
