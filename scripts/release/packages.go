// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the packager
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the packager
	"golang.org/x/sync/errgroup"
)

// programPackage is a package: one program, and what belongs to it.
type programPackage struct {
	name, program string
	summary, more string // lines of the description
	user          string // whom its service has; empty: root
	link          string // below which the agent replaces the program
	data          string // of the program, below /var/lib/edgebus
	settings      string // the program's file in /etc/edgebus, and its page in configs
	conffile      bool   // the file is in the package: whoever installs it wants it to run
	depends       []string
	recommends    []string
}

// packages are all, in order.
func (b *releaseBuild) packages() []programPackage {
	list := []programPackage{
		{
			name: "edgebus", program: "edgebus", summary: "command line of the Edgebus message bus",
			more: "It shows, applies and watches a hub's objects, sets values of devices, and\nsays what is wrong with a node.",
		},
		{
			name: "edgebus-hub", program: "cloudhub", user: "edgebus-hub", data: "hub", settings: "hub.yaml", recommends: []string{"edgebus"},
			summary: "hub of the Edgebus message bus: MQTT broker, API and links to all nodes",
			more:    "The service starts when /etc/edgebus/hub.yaml is there: \"listen: public\" is\nenough for nodes to join.",
		},
		{
			name: "edgebus-core", program: "edgecore", user: "edgebus-core", link: "current", data: "core", settings: "core.yaml",
			summary: "core of an Edgebus node: MQTT broker, state of devices, link to the hub",
			more:    "The service starts when the node joins a hub: \"edgebus invite NODE\" on the\nhub prints the command.",
		},
		{
			name: "edgebus-agent", program: "edgeagent", link: "agent", data: "agent", settings: "agent.yaml", depends: []string{"edgebus-core"},
			summary: "agent that makes a host what its Edgebus node's spec says",
			more:    "The service starts when /etc/edgebus/agent.yaml is there: installing it lets\nno hub change this host.",
		},
		{
			name: "edgebus-discovery", program: "edgediscovery", user: "edgediscovery", data: "discovery", settings: "discovery.yaml", conffile: true, recommends: []string{"edgebus-core"},
			summary: "discovery of devices for an Edgebus node",
			more:    "It looks for the devices that the node's Configurations ask for, and publishes\nwhat it finds at the node's broker.",
		},
	}
	for _, mapper := range b.mappers() {
		list = append(list, programPackage{
			name: "edgebus-" + mapper, program: mapper, user: "edgebus-" + mapper, data: mapper, settings: mapper + ".yaml", conffile: true, recommends: []string{"edgebus-core"},
			summary: "Edgebus mapper for " + strings.TrimPrefix(mapper, "mapper-") + " devices",
			more:    "It drives the devices of its protocol for the node on this host.",
		})
	}
	return list
}

func makePackages(b *releaseBuild) error {
	list := b.packages()
	var programs []string
	for _, p := range list {
		programs = append(programs, p.program)
	}
	if err := errors.Join(b.manual(programs...), b.completions()); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for _, arch := range b.arches {
		if err := b.compile(arch, programs...); err != nil {
			return errors.Join(err, g.Wait())
		}
		for _, p := range list {
			for _, format := range []string{"deb", "rpm"} {
				g.Go(func() error {
					if err := b.pack(p, arch, format); err != nil {
						return fmt.Errorf("%s for %s (%s): %w", p.name, arch, format, err)
					}
					return nil
				})
			}
		}
	}
	return g.Wait()
}

// completions writes what shells read to complete the command line.
func (b *releaseBuild) completions() error {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := b.command(b.binary(runtime.GOARCH, "edgebus"), "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("edgebus completion %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(b.work(), "edgebus."+shell), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// packageArch is an architecture as nfpm knows it: it translates Go's names, of which arm has a version.
func packageArch(arch string) string {
	if arch == "arm" {
		return "arm7"
	}
	return arch
}

// pack writes one package.
func (b *releaseBuild) pack(p programPackage, arch, format string) error {
	tree := packageTree{dir: filepath.Join(b.work(), arch, p.name+"."+format), mtime: b.time}
	if err := os.RemoveAll(tree.dir); err != nil {
		return err
	}
	if err := errors.Join(b.stage(&tree, p, arch, format), tree.err); err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: p.name, Arch: packageArch(arch), Platform: "linux", Version: b.version, Section: "net", Priority: "optional",
		Maintainer: "Edgebus maintainers <maintainers@edgebus.io>", Vendor: "Edgebus", Homepage: "https://github.com/edgebus/edgebus", License: "Apache-2.0",
		Description: p.summary + "\n" + p.more, MTime: b.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Depends: p.depends, Recommends: p.recommends, Contents: tree.contents, Umask: 0o022,
			RPM: nfpm.RPM{BuildHost: "edgebus", Summary: p.summary, Group: "System Environment/Daemons", Compression: b.compression("zstd", "gzip:1")},
			Deb: nfpm.Deb{Compression: b.compression("xz", "gzip")},
		},
	})
	if p.user != "" {
		info.Depends = append(info.Depends, map[string]string{"deb": "passwd", "rpm": "/usr/sbin/useradd"}[format])
	}
	if p.settings != "" {
		if err := b.addScripts(info, &tree, p, format); err != nil {
			return err
		}
	}
	if format == "rpm" {
		info.Release = "1"
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := packager.Package(info, &out); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, packager.ConventionalFileName(info)), out.Bytes(), 0o644)
}

func (b *releaseBuild) addScripts(info *nfpm.Info, tree *packageTree, p programPackage, format string) error {
	m := maintainerScripts{
		Deb: format == "deb", Version: b.version, Program: p.program, Unit: p.program + ".service", User: p.user, Link: p.link, Data: p.data,
		Settings: "/etc/edgebus/" + p.settings, Conffile: p.conffile,
	}
	for name, path := range map[string]*string{"postinstall": &info.Scripts.PostInstall, "preremove": &info.Scripts.PreRemove, "postremove": &info.Scripts.PostRemove} {
		text, err := m.script(name)
		if err != nil {
			return err
		}
		*path = filepath.Join(tree.dir, name)
		if err := os.WriteFile(*path, []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// stage lays out the files of a package.
func (b *releaseBuild) stage(tree *packageTree, p programPackage, arch, format string) error {
	program := "/usr/bin/" + p.program
	if p.link != "" {
		program = "/usr/lib/edgebus/" + p.program
		tree.symlink("/usr/bin/"+p.program, "../local/lib/edgebus/"+p.link+"/"+p.program)
	}
	tree.file(b.binary(arch, p.program), program, 0o755)
	doc := "/usr/share/doc/" + p.name
	if err := b.stageDocs(tree, p, doc, format); err != nil {
		return err
	}
	if p.settings == "" {
		return b.stageShell(tree, format)
	}
	tree.folder("/etc/edgebus")
	tree.folder("/var/lib/edgebus")
	settings, err := os.ReadFile(filepath.Join(b.root, "configs", p.settings))
	if err != nil {
		return err
	}
	if p.conffile {
		tree.write("/etc/edgebus/"+p.settings, "config|noreplace", commentedPage(settings), 0o644)
	} else {
		tree.write(doc+"/examples/"+p.settings, "", settings, 0o644)
	}
	unit, err := b.unit(p.program)
	tree.write("/usr/lib/systemd/system/"+p.program+".service", "", unit, 0o644)
	if err == nil && p.program == "cloudhub" { // for another machine than a hub's; nobody starts it but its administrator
		unit, err = b.unit("edgebus-follow")
		tree.write("/usr/lib/systemd/system/edgebus-follow.service", "", unit, 0o644)
	}
	return err
}

// unit is a service's unit. Packages have programs in /usr/bin, where install.sh leaves them in /usr/local.
func (b *releaseBuild) unit(program string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(b.root, "scripts", "systemd", program+".service"))
	if os.IsNotExist(err) && strings.HasPrefix(program, "mapper-") {
		text, err = os.ReadFile(filepath.Join(b.root, "scripts", "systemd", "mapper.service"))
	}
	text = bytes.ReplaceAll(text, []byte("@MAPPER@"), []byte(program))
	return bytes.ReplaceAll(text, []byte("/usr/local/bin/"), []byte("/usr/bin/")), err
}

// stageDocs adds man pages and what Debian wants to be told of a package: changes and licences.
func (b *releaseBuild) stageDocs(tree *packageTree, p programPackage, doc, format string) error {
	pages, err := filepath.Glob(filepath.Join(b.work(), "man", p.program+"*"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		name := filepath.Base(page)
		if p.program != "edgebus" && name != p.program+".8" {
			continue // edgebus has a page for each command
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		tree.write("/usr/share/man/man"+name[len(name)-1:]+"/"+name+".gz", "", gzipText(text), 0o644)
	}
	licence, err := os.ReadFile(filepath.Join(b.root, "LICENSE"))
	if err != nil {
		return err
	}
	if format == "deb" {
		licence = nil // it is in /usr/share/common-licenses
		tree.write("/usr/share/lintian/overrides/"+p.name, "", []byte("# Go links statically.\n"+p.name+": statically-linked-binary\n"), 0o644)
		tree.write(doc+"/changelog.gz", "", gzipText(fmt.Appendf(nil, "%s (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources lists the changes.\n\n -- Edgebus maintainers <maintainers@edgebus.io>  %s\n",
			p.name, debianVersion(b.version), b.time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))), 0o644)
	}
	notice, err := b.notice()
	if err != nil {
		return err
	}
	tree.write(doc+"/copyright", "", copyrightText(licence), 0o644)
	tree.write(doc+"/NOTICE.gz", "", gzipText(notice), 0o644)
	return nil
}

// stageShell adds what the shells complete with.
func (b *releaseBuild) stageShell(tree *packageTree, format string) error {
	samples, err := filepath.Glob(filepath.Join(b.root, "configs", "samples", "*.yaml"))
	for _, sample := range samples {
		tree.file(sample, "/usr/share/edgebus/samples/"+filepath.Base(sample), 0o644)
	}
	zsh := map[string]string{"deb": "/usr/share/zsh/vendor-completions/_edgebus", "rpm": "/usr/share/zsh/site-functions/_edgebus"}[format]
	tree.file(filepath.Join(b.work(), "edgebus.bash"), "/usr/share/bash-completion/completions/edgebus", 0o644)
	tree.file(filepath.Join(b.work(), "edgebus.zsh"), zsh, 0o644)
	tree.file(filepath.Join(b.work(), "edgebus.fish"), "/usr/share/fish/vendor_completions.d/edgebus.fish", 0o644)
	return err
}

// debianVersion is the version as packages have it: what comes before a version sorts before it.
func debianVersion(version string) string {
	return strings.Replace(strings.TrimPrefix(version, "v"), "-", "~", 1)
}

func copyrightText(licence []byte) []byte {
	text := []byte(`Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: edgebus
Source: https://github.com/edgebus/edgebus

Files: *
Copyright: 2026 the Edgebus authors
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
`)
	if len(licence) > 0 {
		text = append(append(text, '\n'), licence...)
	}
	return text
}

// commentedPage is a page of settings that sets nothing: each has its default until somebody takes away a #.
func commentedPage(page []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(page) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' {
			out.WriteByte('#')
		}
		out.Write(line)
	}
	return out.Bytes()
}

func gzipText(text []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is one
	_, _ = w.Write(text)                                    // to memory
	_ = w.Close()
	return out.Bytes()
}

// packageTree is the tree of files of a package.
type packageTree struct {
	dir      string
	mtime    time.Time
	contents files.Contents
	err      error // the first of writing
}

func (s *packageTree) info(mode fs.FileMode) *files.ContentFileInfo {
	return &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: s.mtime}
}

func (s *packageTree) file(from, to string, mode fs.FileMode) {
	s.contents = append(s.contents, &files.Content{Source: from, Destination: to, FileInfo: s.info(mode)})
}

func (s *packageTree) symlink(at, to string) {
	s.contents = append(s.contents, &files.Content{Source: to, Destination: at, Type: files.TypeSymlink, FileInfo: s.info(0o777)})
}

func (s *packageTree) folder(path string) {
	s.contents = append(s.contents, &files.Content{Destination: path, Type: files.TypeDir, FileInfo: s.info(0o755)})
}

// write adds a file with that text.
func (s *packageTree) write(to, kind string, text []byte, mode fs.FileMode) {
	from := filepath.Join(s.dir, to)
	s.err = errors.Join(s.err, os.MkdirAll(filepath.Dir(from), 0o755), os.WriteFile(from, text, 0o644))
	s.contents = append(s.contents, &files.Content{Source: from, Destination: to, Type: kind, FileInfo: s.info(mode)})
}
