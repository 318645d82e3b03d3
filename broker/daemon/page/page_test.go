// SPDX-License-Identifier: Apache-2.0

package page

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func getPage(path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func TestEachAddressOfThePageIsThePageAndItsFilesAreCachedForEver(t *testing.T) {
	for _, at := range []string{Path, Path + "devices", Path + "nodes/n1", Path + "devices/default/a.js"} {
		w := getPage(at)
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), `<div id="app">`)
		require.Equal(t, "no-cache", w.Header().Get("Cache-Control"))
	}
	files := regexp.MustCompile(`/ui/assets/[^"]+`).FindAllString(getPage(Path).Body.String(), -1)
	require.Len(t, files, 3)
	for _, file := range files {
		plain := getPage(file, "Range", "bytes=0-1")
		require.Equal(t, http.StatusOK, plain.Code, file)
		require.Contains(t, plain.Header().Get("Cache-Control"), "immutable")
		packed := getPage(file, "Accept-Encoding", "br, gzip;q=1.0")
		require.Equal(t, "gzip", packed.Header().Get("Content-Encoding"))
		z, err := gzip.NewReader(packed.Body)
		require.NoError(t, err)
		raw, err := io.ReadAll(z)
		require.NoError(t, err)
		require.Equal(t, plain.Body.String(), string(raw))
	}
	for _, none := range []string{"main.js", "index.html", "../page.go", strings.TrimPrefix(files[0], "/ui/assets/") + ".gz"} {
		require.Equal(t, http.StatusNotFound, getPage(Path+"assets/"+none).Code, none)
	}
}

func TestNoOtherSiteMayFrameThePageOrRunScriptInIt(t *testing.T) {
	h := getPage(Path).Header()
	require.Equal(t, "default-src 'self'; connect-src 'self' ws://example.com; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'", h.Get("Content-Security-Policy"))
	require.Equal(t, "DENY", h.Get("X-Frame-Options"))
	require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
	require.NotContains(t, getPage(Path).Body.String(), "<script>", "inline")
	r := httptest.NewRequest(http.MethodGet, Path, nil)
	r.Host = "evil.example; script-src *"
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	require.NotContains(t, w.Header().Get("Content-Security-Policy"), "evil")
}

func TestThePageIsSmall(t *testing.T) {
	first, all := 0, 0
	index := getPage(Path).Body.String()
	var eager func(name string)
	seen := map[string]bool{}
	eager = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		raw, err := fs.ReadFile(embeddedFiles, "dist/"+name)
		require.NoError(t, err)
		packed, err := fs.ReadFile(embeddedFiles, "dist/"+name+".gz")
		require.NoError(t, err)
		first += len(packed)
		for _, m := range regexp.MustCompile(`(?:from|import)"\./([^"]+)"`).FindAllStringSubmatch(string(raw), -1) {
			eager(m[1])
		}
	}
	for _, m := range regexp.MustCompile(`/ui/assets/([^"]+)`).FindAllStringSubmatch(index, -1) {
		eager(m[1])
	}
	entries, err := fs.ReadDir(embeddedFiles, "dist")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".gz") {
			info, err := e.Info()
			require.NoError(t, err)
			all += int(info.Size())
		}
	}
	t.Logf("first load %d bytes, all %d", first, all)
	require.Less(t, first, 50_000)
	require.Less(t, all, 200_000)
}
