// SPDX-License-Identifier: Apache-2.0

// Program page bundles the web page with esbuild: from broker/daemon/page/web, where npm ci has put its packages, into
// broker/daemon/page/dist. Each file is written as it is and compressed, under a name with the hash of its content.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: page broker/daemon/page")
		os.Exit(2)
	}
	if err := bundle(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func bundle(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	web, dist := filepath.Join(dir, "web"), filepath.Join(dir, "dist")
	built := api.Build(api.BuildOptions{
		AbsWorkingDir: web, EntryPoints: []string{"src/main.tsx", "icon.svg"}, Outdir: dist,
		EntryNames: "[name]-[hash]", ChunkNames: "[name]-[hash]", AssetNames: "[name]-[hash]",
		Bundle: true, Splitting: true, Format: api.FormatESModule, Target: api.ES2022, Platform: api.PlatformBrowser,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, LegalComments: api.LegalCommentsEndOfFile,
		JSX: api.JSXAutomatic, JSXImportSource: "preact", Loader: map[string]api.Loader{".svg": api.LoaderCopy},
		Define: map[string]string{"process.env.NODE_ENV": `"production"`},
	})
	for _, e := range built.Errors {
		return fmt.Errorf("%s", e.Text)
	}
	if err := os.RemoveAll(dist); err != nil {
		return err
	}
	if err := os.MkdirAll(dist, 0o755); err != nil {
		return err
	}
	index, err := os.ReadFile(filepath.Join(web, "index.html"))
	if err != nil {
		return err
	}
	for _, f := range built.OutputFiles {
		name := filepath.Base(f.Path)
		for field, end := range map[string]string{"{{js}}": ".js", "{{css}}": ".css", "{{icon}}": ".svg"} {
			if strings.HasSuffix(name, end) && (strings.HasPrefix(name, "main-") || end == ".svg") {
				index = bytes.ReplaceAll(index, []byte(field), []byte(name))
			}
		}
		if err := write(filepath.Join(dist, name), f.Contents); err != nil {
			return err
		}
	}
	return write(filepath.Join(dist, "index.html"), index)
}

// write writes a file, and compressed. The compressed form has no time and no name, so that it is the same in each build.
func write(path string, content []byte) error {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(content); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return os.WriteFile(path+".gz", out.Bytes(), 0o644)
}
