// SPDX-License-Identifier: Apache-2.0

// Package page is the web page of hub and core: what is built of web/ is embedded, and served with the headers that keep other sites out of it.
//
// It never asks who one is: the files hold nothing of users. What the page shows comes from the API, by the rights of who has signed in.
//
// The sources are in web/; `make page-dist` bundles them into dist/ (scripts/page), which is committed, so that nobody who builds Edgebus
// needs node. `make page` checks that it would come out the same.
package page

import (
	"bytes"
	"embed"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

// Path is where the page is. All addresses below it that are no file's are the page's own.
const Path = "/ui/"

const assetsPath = Path + "assets/"

//go:embed dist
var embeddedFiles embed.FS

// Handler serves the page. policy is what a browser may do on its behalf.
func Handler() http.Handler {
	files, err := fs.Sub(embeddedFiles, "dist")
	if err != nil {
		panic(err) // it is embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header(), r)
		name, file := strings.CutPrefix(r.URL.Path, assetsPath)
		if !file {
			name = "index.html"
		}
		content, err := fs.ReadFile(files, name)
		if err != nil || file && (strings.HasSuffix(name, ".gz") || name == "index.html") {
			http.Error(w, "there is no such file of the page: it is another version's, load the page again", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
		w.Header().Set("Cache-Control", "no-cache")
		if file { // its name has the hash of its content
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		w.Header().Set("Vary", "Accept-Encoding")
		if packed, err := fs.ReadFile(files, name+".gz"); err == nil && len(packed) < len(content) && acceptsGzip(r) {
			w.Header().Set("Content-Encoding", "gzip")
			content = packed
		}
		http.ServeContent(w, withoutRange(r), "", time.Time{}, bytes.NewReader(content))
	})
}

// setSecurityHeaders sets what keeps the page to itself: no script but its own files, no frame around it, nothing sent to others.
func setSecurityHeaders(h http.Header, r *http.Request) {
	scheme := "ws"
	if r.TLS != nil {
		scheme = "wss"
	}
	connect := "'self'"
	if isHost(r.Host) {
		connect += " " + scheme + "://" + r.Host
	}
	h.Set("Content-Security-Policy", "default-src 'self'; connect-src "+connect+"; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// isHost reports whether a Host is nothing but a name or address with a port: it becomes a part of the policy.
func isHost(host string) bool {
	return host != "" && strings.IndexFunc(host, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(".-:[]", c))
	}) < 0
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" {
			return strings.TrimSpace(quality) != "q=0"
		}
	}
	return false
}

// withoutRange asks for the whole file: a piece of a compressed one helps nobody.
func withoutRange(r *http.Request) *http.Request {
	if r.Header.Get("Range") == "" {
		return r
	}
	whole := r.Clone(r.Context())
	whole.Header.Del("Range")
	return whole
}
