// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// imageUser is who runs in a container: nobody whom a host knows.
const imageUser = 65532

// programImage is a container image: one program and what it reads of a system, nothing else.
type programImage struct {
	name, program string
	env           []string
	ports         []string
	data          bool // it keeps data and settings
	health        bool // it has the command health
}

// images are all, in order. The agent has none: what it changes is the host.
func (b *releaseBuild) images() []programImage {
	list := []programImage{
		{
			// A container's own loopback is reached by nobody else.
			name: "edgebus-hub", program: "cloudhub", data: true, health: true, ports: []string{"8443/tcp", "8883/tcp"},
			env: []string{"CLOUDHUB_LISTEN=public", "CLOUDHUB_DATA_DIR=/var/lib/edgebus/hub"},
		},
		{name: "edgebus-core", program: "edgecore", data: true, health: true, env: []string{"EDGECORE_DATA_DIR=/var/lib/edgebus/core"}},
		{name: "edgebus-discovery", program: "edgediscovery", data: true, env: []string{"EDGEDISCOVERY_DATA_DIR=/var/lib/edgebus/discovery"}},
		{name: "edgebus", program: "edgebus"},
	}
	for _, mapper := range b.mappers() {
		list = append(list, programImage{name: "edgebus-" + mapper, program: mapper, health: true})
	}
	return list
}

func makeImages(b *releaseBuild) error {
	list := b.images()
	var programs []string
	for _, i := range list {
		programs = append(programs, i.program)
	}
	for _, arch := range b.arches {
		if err := b.compile(arch, programs...); err != nil {
			return err
		}
	}
	for _, i := range list {
		if err := b.writeImage(i); err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
	}
	return nil
}

// writeImage writes an image as a layout for all architectures, and as a tarball for each.
func (b *releaseBuild) writeImage(i programImage) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range b.arches {
		image, err := b.image(i, arch)
		if err != nil {
			return err
		}
		tag, err := name.NewTag(i.name + ":" + b.version)
		if err != nil {
			return err
		}
		if err := tarball.WriteToFile(filepath.Join(b.out, fmt.Sprintf("%s_%s_%s.docker.tar", i.name, b.version, arch)), tag, image); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: mutate.MediaType(mutate.ConfigMediaType(image, types.OCIConfigJSON), types.OCIManifestSchema1), Descriptor: v1.Descriptor{Platform: platformOf(arch)}})
	}
	dir := filepath.Join(b.work(), "oci", i.name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": i.name + ":" + b.version})); err != nil {
		return err
	}
	return b.archive(filepath.Join(b.out, i.name+"_"+b.version+".oci.tar"), dir, false)
}

func platformOf(arch string) *v1.Platform {
	p := &v1.Platform{OS: "linux", Architecture: arch}
	if arch == "arm" {
		p.Variant = "v7"
	}
	return p
}

// image is that of one architecture.
func (b *releaseBuild) image(i programImage, arch string) (v1.Image, error) {
	system, err := b.systemLayer()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(b.binary(arch, i.program))
	if err != nil {
		return nil, err
	}
	files := tarWriter{time: b.time}
	files.folder("usr", 0)
	files.folder("usr/bin", 0)
	files.file("usr/bin/"+i.program, program, 0o755)
	layer, err := files.layer()
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, system, layer)
	if err != nil {
		return nil, err
	}
	config := v1.Config{
		Entrypoint: []string{"/usr/bin/" + i.program}, User: fmt.Sprintf("%d:%d", imageUser, imageUser), WorkingDir: "/", StopSignal: "SIGTERM",
		Env: append([]string{"PATH=/usr/bin", "HOME=/var/lib/edgebus"}, i.env...),
		Labels: map[string]string{
			"org.opencontainers.image.title": i.name, "org.opencontainers.image.version": b.version, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/edgebus/edgebus",
		},
	}
	if i.data {
		config.Volumes = map[string]struct{}{"/etc/edgebus": {}, "/var/lib/edgebus": {}}
	}
	if i.health {
		config.Healthcheck = &v1.HealthConfig{Test: []string{"CMD", "/usr/bin/" + i.program, "health"}, Interval: 30 * time.Second, Timeout: 10 * time.Second, StartPeriod: 10 * time.Second, Retries: 3}
	}
	for _, port := range i.ports {
		if config.ExposedPorts == nil {
			config.ExposedPorts = map[string]struct{}{}
		}
		config.ExposedPorts[port] = struct{}{}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	p := platformOf(arch)
	file.OS, file.Architecture, file.Variant, file.Config, file.Created = p.OS, p.Architecture, p.Variant, config, v1.Time{Time: b.time}
	for n := range file.History {
		file.History[n] = v1.History{Created: v1.Time{Time: b.time}, CreatedBy: "edgebus release"}
	}
	return mutate.ConfigFile(image, file)
}

// systemLayer is what programs read of a system: a user, certificates of authorities and licences. The time zones are in the programs.
func (b *releaseBuild) systemLayer() (v1.Layer, error) {
	licence, err := os.ReadFile(filepath.Join(b.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	notice, err := b.notice()
	if err != nil {
		return nil, err
	}
	files := tarWriter{time: b.time}
	for _, dir := range []string{"etc", "etc/ssl", "etc/ssl/certs", "tmp", "usr", "usr/share", "usr/share/doc", "usr/share/doc/edgebus", "var", "var/lib"} {
		files.folder(dir, 0)
	}
	files.file("etc/passwd", fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nedgebus:x:%d:%[1]d:edgebus:/var/lib/edgebus:/sbin/nologin\n", imageUser), 0o644)
	files.file("etc/group", fmt.Appendf(nil, "root:x:0:\nedgebus:x:%d:\n", imageUser), 0o644)
	files.file("etc/ssl/certs/ca-certificates.crt", authorities(), 0o644)
	files.file("usr/share/doc/edgebus/LICENSE", licence, 0o644)
	files.file("usr/share/doc/edgebus/NOTICE", notice, 0o644)
	files.folder("etc/edgebus", imageUser)
	files.folder("var/lib/edgebus", imageUser)
	return files.layer()
}

// authorities are those whom Mozilla trusts without restrictions, which a file of certificates can't express.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // to memory
		}
	}
	return out.Bytes()
}

// tarWriter makes an archive whose bytes depend on its contents alone.
type tarWriter struct {
	time time.Time
	out  bytes.Buffer
	tar  *tar.Writer
	err  error
}

func (w *tarWriter) add(h tar.Header, text []byte) {
	if w.tar == nil {
		w.tar = tar.NewWriter(&w.out)
	}
	h.ModTime, h.Format, h.Size = w.time, tar.FormatPAX, int64(len(text))
	err := w.tar.WriteHeader(&h)
	if err == nil {
		_, err = w.tar.Write(text)
	}
	w.err = errors.Join(w.err, err)
}

func (w *tarWriter) folder(path string, owner int) {
	mode := int64(0o755)
	if path == "tmp" {
		mode = 0o1777
	}
	w.add(tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: mode, Uid: owner, Gid: owner}, nil)
}

func (w *tarWriter) file(path string, text []byte, mode int64) {
	w.add(tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode}, text)
}

func (w *tarWriter) close() ([]byte, error) {
	if w.tar != nil {
		w.err = errors.Join(w.err, w.tar.Close())
	}
	return w.out.Bytes(), w.err
}

func (w *tarWriter) layer() (v1.Layer, error) {
	text, err := w.close()
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
}

// archive writes a directory as a tar file, compressed or not; the names in it begin at the directory.
func (b *releaseBuild) archive(to, dir string, compress bool) error {
	files := tarWriter{time: b.time}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(at, dir+string(filepath.Separator)))
		if compress { // what people unpack has a directory of its own
			name = path.Join(filepath.Base(dir), name)
		}
		if d.IsDir() {
			files.folder(name, 0)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(at)
		files.file(name, text, int64(info.Mode().Perm()))
		return err
	})
	text, closed := files.close()
	if err := errors.Join(err, closed); err != nil {
		return err
	}
	if compress {
		text = gzipText(text)
	}
	return os.WriteFile(to, text, 0o644)
}
