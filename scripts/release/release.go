// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

// makeRelease makes all that users download: packages, images, an archive for each architecture with all programs, lists of what is in
// them, checksums, and a signature of these.
func makeRelease(b *releaseBuild) error {
	if err := errors.Join(makePackages(b), makeImages(b)); err != nil {
		return err
	}
	for _, arch := range b.arches {
		if err := errors.Join(b.compile(arch, b.programs()...), b.writeArchive(arch, b.programs())); err != nil {
			return err
		}
	}
	if err := errors.Join(b.writeChart(), b.writeSBOMs()); err != nil {
		return err
	}
	return b.writeChecksums()
}

// writeChart writes the Helm chart, with the version of its image.
func (b *releaseBuild) writeChart() error {
	dir := filepath.Join(b.work(), "chart", "edgebus-hub")
	if err := errors.Join(os.RemoveAll(dir), copyPath(filepath.Join(b.root, "configs", "deploy", "helm", "edgebus-hub"), dir)); err != nil {
		return err
	}
	file := filepath.Join(dir, "Chart.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(b.version, "v")
	text = regexp.MustCompile(`(?m)^version: .*$`).ReplaceAll(text, []byte("version: "+version))
	text = regexp.MustCompile(`(?m)^appVersion: .*$`).ReplaceAll(text, []byte("appVersion: "+b.version))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	return b.archive(filepath.Join(b.out, "edgebus-hub-"+version+".tgz"), dir, true)
}

// writeArchive writes programs with what install.sh and people need beside them.
func (b *releaseBuild) writeArchive(arch string, programs []string) error {
	notice, err := b.notice()
	if err != nil {
		return err
	}
	dir := filepath.Join(b.work(), "archive", fmt.Sprintf("edgebus-%s-linux-%s", b.version, arch))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "bin"), 0o755), os.WriteFile(filepath.Join(dir, "NOTICE"), notice, 0o644)); err != nil {
		return err
	}
	for _, program := range programs {
		text, err := os.ReadFile(b.binary(arch, program))
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "bin", program), text, 0o755)); err != nil { //nolint:gosec // programs can be run
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(b.work(), "man")); err == nil {
		if err := os.CopyFS(filepath.Join(dir, "man"), os.DirFS(filepath.Join(b.work(), "man"))); err != nil {
			return err
		}
	}
	for _, path := range []string{"LICENSE", "README.md", "scripts/install.sh", "scripts/certs.sh", "scripts/systemd", "configs/samples", "configs/deploy"} {
		if err := copyPath(filepath.Join(b.root, path), filepath.Join(dir, path)); err != nil {
			return err
		}
	}
	return b.archive(filepath.Join(b.out, filepath.Base(dir)+".tar.gz"), dir, true)
}

// copyPath copies a file or a directory; tests stay behind.
func copyPath(from, to string) error {
	return filepath.WalkDir(from, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(d.Name(), ".test.") {
			return err
		}
		target := to + strings.TrimPrefix(at, from)
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, text, mode))
	})
}

// writeSBOMs writes for each program which modules are in it, in CycloneDX. The tool says in it what it is by its own checksum: it is built as the
// programs are, and not run from the build cache, which others clean.
func (b *releaseBuild) writeSBOMs() error {
	tool := filepath.Join(b.work(), "cyclonedx-gomod")
	build := b.command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", tool, "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod")
	build.Dir, build.Env = filepath.Join(b.root, "scripts", "release"), append(os.Environ(), "CGO_ENABLED=0") // the module whose tool it is
	if err := build.Run(); err != nil {
		return fmt.Errorf("cyclonedx-gomod: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for _, arch := range b.arches {
		for _, program := range b.programs() {
			g.Go(func() error {
				cmd := b.command(tool, "bin", "-json", "-noserial", "-notimestamp", "-version", b.version,
					"-output", filepath.Join(b.out, fmt.Sprintf("%s_%s_%s.cdx.json", program, b.version, arch)), b.binary(arch, program))
				cmd.Stderr = nil
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("cyclonedx-gomod for %s: %w: %s", program, err, out)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// writeChecksums writes SHA256SUMS of all files, and signs it with the keys that there are: see sign.go.
func (b *releaseBuild) writeChecksums() error {
	entries, err := os.ReadDir(b.out)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), "SHA256SUMS") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(b.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	if err := os.WriteFile(filepath.Join(b.out, "SHA256SUMS"), sums.Bytes(), 0o644); err != nil {
		return err
	}
	return errors.Join(b.signMinisign(sums.Bytes()), b.signCosign(sums.Bytes()))
}
