// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	sigsjson "sigs.k8s.io/json"

	"github.com/edgebus/edgebus/topics/resource"
)

// Ignition configures a host once, at its first boot. A node's spec is applied again and again, so only what can be applied
// twice with the same result is rendered: files, directories, symbolic links, and units of systemd, which are files and links.

// ignitionVersions are the versions of the configuration that are read: each is a part of the last.
var ignitionVersions = []string{"3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0"}

type ignitionConfig struct {
	Ignition struct {
		Version  string          `json:"version"`
		Config   json.RawMessage `json:"config"`
		Proxy    json.RawMessage `json:"proxy"`
		Security json.RawMessage `json:"security"`
		Timeouts json.RawMessage `json:"timeouts"`
	} `json:"ignition"`
	Storage struct {
		Files       []ignitionFile      `json:"files"`
		Directories []ignitionDirectory `json:"directories"`
		Links       []ignitionLink      `json:"links"`
		Disks       json.RawMessage     `json:"disks"`
		Raid        json.RawMessage     `json:"raid"`
		Filesystems json.RawMessage     `json:"filesystems"`
		LUKS        json.RawMessage     `json:"luks"`
	} `json:"storage"`
	Systemd struct {
		Units []ignitionUnit `json:"units"`
	} `json:"systemd"`
	Passwd          json.RawMessage `json:"passwd"`
	KernelArguments json.RawMessage `json:"kernelArguments"`
}

type ignitionNode struct {
	Path      string        `json:"path"`
	Overwrite *bool         `json:"overwrite"`
	User      ignitionOwner `json:"user"`
	Group     ignitionOwner `json:"group"`
}

type ignitionOwner struct {
	ID   *int   `json:"id"`
	Name string `json:"name"`
}

// text is the owner as a RenderedFile has it; empty: root.
func (o ignitionOwner) text() (string, error) {
	switch {
	case o.ID == nil:
		return o.Name, nil
	case o.Name != "":
		return "", fmt.Errorf("has both an id and a name")
	case *o.ID < 0:
		return "", fmt.Errorf("has the id %d, which is below 0", *o.ID)
	}
	return strconv.Itoa(*o.ID), nil
}

type ignitionFile struct {
	ignitionNode
	Mode     *int              `json:"mode"`
	Contents ignitionContent   `json:"contents"`
	Append   []ignitionContent `json:"append"`
}

type ignitionContent struct {
	Source       *string         `json:"source"`
	Compression  string          `json:"compression"`
	HTTPHeaders  json.RawMessage `json:"httpHeaders"`
	Verification struct {
		Hash string `json:"hash"`
	} `json:"verification"`
}

type ignitionDirectory struct {
	ignitionNode
	Mode *int `json:"mode"`
}

type ignitionLink struct {
	ignitionNode
	Target string `json:"target"`
	Hard   bool   `json:"hard"`
}

type ignitionUnit struct {
	Name     string  `json:"name"`
	Enabled  *bool   `json:"enabled"`
	Mask     bool    `json:"mask"`
	Contents *string `json:"contents"`
	Dropins  []struct {
		Name     string  `json:"name"`
		Contents *string `json:"contents"`
	} `json:"dropins"`
}

// ignition adds what an Ignition document says.
func (b *specBuilder) ignition(t *fileTree, by string, raw []byte) error {
	var c ignitionConfig
	if unknown, err := sigsjson.UnmarshalStrict(raw, &c); err != nil || len(unknown) > 0 {
		if err == nil {
			err = unknown[0]
		}
		return newProblem(ReasonInvalid, "%s.inline is no Ignition document as this hub reads it: %v", by, err)
	}
	if err := c.check(by); err != nil {
		return err
	}
	for _, d := range c.Storage.Directories {
		if err := b.directory(t, by, d); err != nil {
			return err
		}
	}
	for _, f := range c.Storage.Files {
		if err := b.ignitionFile(t, by, f); err != nil {
			return err
		}
	}
	for _, l := range c.Storage.Links {
		if err := b.link(t, by, l); err != nil {
			return err
		}
	}
	for _, u := range c.Systemd.Units {
		if err := b.unit(t, by, u); err != nil {
			return err
		}
	}
	return nil
}

// check refuses versions that are not read, and sections that can't be rendered.
func (c ignitionConfig) check(by string) error {
	if !slices.Contains(ignitionVersions, c.Ignition.Version) {
		return newProblem(ReasonInvalid, "%s.inline.ignition.version is %.40q; it must be 3.4.0 or an earlier version 3", by, c.Ignition.Version)
	}
	for _, section := range []struct {
		name  string
		value json.RawMessage
	}{
		{"ignition.config", c.Ignition.Config},
		{"ignition.proxy", c.Ignition.Proxy},
		{"ignition.security", c.Ignition.Security},
		{"ignition.timeouts", c.Ignition.Timeouts},
		{"storage.disks", c.Storage.Disks},
		{"storage.raid", c.Storage.Raid},
		{"storage.filesystems", c.Storage.Filesystems},
		{"storage.luks", c.Storage.LUKS},
		{"passwd", c.Passwd},
		{"kernelArguments", c.KernelArguments},
	} {
		if text := string(section.value); text != "" && text != "null" && text != "{}" && text != "[]" {
			return newProblem(ReasonNotSupported, "%s.inline.%s is not supported: only storage.files, storage.directories, storage.links and systemd.units are", by, section.name)
		}
	}
	return nil
}

// entry is what files, directories and links have in common.
func (n ignitionNode) entry(by, kind string) (f resource.RenderedFile, err error) {
	f = resource.RenderedFile{Path: n.Path, Type: kind}
	if f.User, err = n.User.text(); err != nil {
		return f, newProblem(ReasonInvalid, "%s: the user of %s %v", by, n.Path, err)
	}
	if f.Group, err = n.Group.text(); err != nil {
		return f, newProblem(ReasonInvalid, "%s: the group of %s %v", by, n.Path, err)
	}
	return f, nil
}

// keepsExisting says whether what is on the host already is left as it is.
func (n ignitionNode) keepsExisting() bool { return n.Overwrite != nil && !*n.Overwrite }

// formatModeOr are a mode in octal.
func formatModeOr(by, at string, mode *int, otherwise int) (string, error) {
	if mode == nil {
		return formatMode(otherwise), nil
	}
	if *mode < 0 || *mode > 0o7777 {
		return "", newProblem(ReasonInvalid, "%s: the mode of %s is %d; it must be from 0 to 4095, which is 7777 in octal", by, at, *mode)
	}
	return formatMode(*mode), nil
}

func (b *specBuilder) directory(t *fileTree, by string, d ignitionDirectory) error {
	f, err := d.entry(by, resource.FileDirectory)
	if err != nil {
		return err
	}
	if d.Overwrite != nil && *d.Overwrite {
		return newProblem(ReasonNotSupported, "%s: overwrite of the directory %s is not supported: it would delete what others have put there", by, d.Path)
	}
	if f.Mode, err = formatModeOr(by, d.Path, d.Mode, 0o755); err != nil {
		return err
	}
	return t.add(by, f)
}

func (b *specBuilder) link(t *fileTree, by string, l ignitionLink) error {
	f, err := l.entry(by, resource.FileLink)
	switch {
	case err != nil:
		return err
	case l.Hard:
		return newProblem(ReasonNotSupported, "%s: the hard link %s is not supported; a symbolic link is", by, l.Path)
	case l.Target == "", len(l.Target) > maxPathLength, strings.ContainsRune(l.Target, 0):
		return newProblem(ReasonInvalid, "%s: the target of the link %s must have 1 to %d bytes, and no NUL", by, l.Path, maxPathLength)
	}
	f.Target, f.Keep = l.Target, l.keepsExisting()
	return t.add(by, f)
}

func (b *specBuilder) ignitionFile(t *fileTree, by string, in ignitionFile) error {
	f, err := in.entry(by, resource.FileRegular)
	if err != nil {
		return err
	}
	if len(in.Append) > 0 {
		return newProblem(ReasonNotSupported, "%s: append to %s is not supported: a spec is applied more than once; give the whole content", by, in.Path)
	}
	if f.Mode, err = formatModeOr(by, in.Path, in.Mode, 0o644); err != nil {
		return err
	}
	// Without a source Ignition keeps the content of a file that is there.
	f.Keep = in.keepsExisting() || in.Contents.Source == nil && in.Overwrite == nil
	data, err := in.Contents.bytes(min(MaxFile, MaxContents-b.size))
	if err != nil {
		reason := ReasonInvalid
		if p, ok := err.(*Problem); ok { //nolint:errorlint // it is not wrapped
			reason = p.Reason
		}
		return newProblem(reason, "%s: the contents of %s %v", by, in.Path, err)
	}
	return b.addFile(t, by, f, data, "")
}

// bytes are the content, of at most so many bytes.
func (c ignitionContent) bytes(most int) (data []byte, err error) {
	if c.Source == nil {
		return nil, nil
	}
	if text := string(c.HTTPHeaders); text != "" && text != "null" && text != "[]" {
		return nil, newProblem(ReasonNotSupported, "have httpHeaders, and are not fetched: only data: URLs are supported")
	}
	if data, err = decodeDataURL(*c.Source); err != nil {
		return nil, err
	}
	switch c.Compression {
	case "":
	case "gzip":
		if data, err = gunzip(data, most); err != nil {
			return nil, err
		}
	default:
		return nil, newProblem(ReasonNotSupported, "have the compression %.40q; only gzip is supported", c.Compression)
	}
	return data, verifyHash(data, c.Verification.Hash)
}

// decodeDataURL decodes a URL of RFC 2397. An empty one is empty content.
func decodeDataURL(source string) ([]byte, error) {
	rest, is := strings.CutPrefix(source, "data:")
	switch {
	case source == "":
		return nil, nil
	case !is:
		scheme, _, _ := strings.Cut(source, ":")
		return nil, newProblem(ReasonNotSupported, "have a source of the scheme %.20q; only data: URLs are supported", scheme)
	}
	media, body, found := strings.Cut(rest, ",")
	if !found {
		return nil, fmt.Errorf("have a data: URL without a comma")
	}
	text, err := url.PathUnescape(body)
	if err != nil {
		return nil, fmt.Errorf("have a data: URL that can't be decoded: %w", err)
	}
	if !strings.HasSuffix(media, ";base64") {
		return []byte(text), nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		data, err = base64.RawStdEncoding.DecodeString(text)
	}
	if err != nil {
		return nil, fmt.Errorf("have a data: URL that is not base64: %w", err)
	}
	return data, nil
}

func gunzip(data []byte, most int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("are not gzip: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("are not gzip: %w", err)
	case len(out) > most:
		return nil, newProblem(ReasonTooLarge, "have more than %d bytes when they are decompressed, which is what the node's files may still have", most)
	}
	return out, nil
}

// verifyHash checks a hash such as sha256-ab12….
func verifyHash(data []byte, want string) error {
	if want == "" {
		return nil
	}
	kind, sum, _ := strings.Cut(want, "-")
	var is string
	switch kind {
	case "sha256":
		h := sha256.Sum256(data)
		is = hex.EncodeToString(h[:])
	case "sha512":
		h := sha512.Sum512(data)
		is = hex.EncodeToString(h[:])
	default:
		return fmt.Errorf("have the hash %.20q; it must begin with sha256- or sha512-", want)
	}
	if !strings.EqualFold(sum, is) {
		return fmt.Errorf("don't have the hash %s-%.16s… that verification says: theirs is %s-%.16s…", kind, sum, kind, is)
	}
	return nil
}

// unitDir is where a host's administrator has units. They override those of the operating system.
const unitDir = "/etc/systemd/system/"

var (
	unitName   = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]{1,200}\.(service|socket|timer|path|mount|automount|target|swap|slice)$`)
	dropinName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]{1,200}\.conf$`)
)

// unit adds a unit of systemd, its drop-ins and the links by which it is enabled.
func (b *specBuilder) unit(t *fileTree, by string, u ignitionUnit) error {
	by += ".inline.systemd.units[" + u.Name + "]"
	if !unitName.MatchString(u.Name) {
		return newProblem(ReasonInvalid, "%s: %.80q is no name of a unit", by, u.Name)
	}
	for _, d := range u.Dropins {
		if !dropinName.MatchString(d.Name) {
			return newProblem(ReasonInvalid, "%s: %.80q is no name of a drop-in: it must end with .conf", by, d.Name)
		}
		if d.Contents == nil {
			continue
		}
		if err := b.addFile(t, by, resource.RenderedFile{Path: unitDir + u.Name + ".d/" + d.Name, Mode: formatMode(0o644)}, []byte(*d.Contents), ""); err != nil {
			return err
		}
	}
	switch {
	case u.Mask && u.Contents != nil:
		return newProblem(ReasonInvalid, "%s has contents and is masked; it can be one of the two", by)
	case u.Mask:
		return t.add(by, resource.RenderedFile{Path: unitDir + u.Name, Type: resource.FileLink, Target: "/dev/null"})
	case u.Contents != nil:
		if err := b.addFile(t, by, resource.RenderedFile{Path: unitDir + u.Name, Mode: formatMode(0o644)}, []byte(*u.Contents), ""); err != nil {
			return err
		}
	}
	if u.Enabled == nil || !*u.Enabled {
		return nil
	}
	return b.enable(t, by, u)
}

// enable adds the links that systemctl enable makes.
func (b *specBuilder) enable(t *fileTree, by string, u ignitionUnit) error {
	if u.Contents == nil || strings.ContainsRune(u.Name, '@') {
		return newProblem(ReasonNotSupported, "%s: enabled is supported for units whose contents are here, and not for templates: what [Install] says must be known", by)
	}
	links, err := installLinks(u.Name, *u.Contents)
	if err != nil {
		return newProblem(ReasonInvalid, "%s: %v", by, err)
	}
	for _, at := range links {
		if err := t.add(by, resource.RenderedFile{Path: unitDir + at, Type: resource.FileLink, Target: unitDir + u.Name}); err != nil {
			return err
		}
	}
	return nil
}

// installLinks are the links, relative to the directory of units, that the section Install asks for.
func installLinks(name, contents string) (links []string, err error) {
	section := ""
	for line := range strings.Lines(strings.ReplaceAll(contents, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		key, value, is := strings.Cut(line, "=")
		if section != "[Install]" || !is || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		for _, other := range strings.Fields(value) {
			if !unitName.MatchString(other) {
				return nil, fmt.Errorf("[Install] has %.80q, which is no name of a unit", other)
			}
			switch key = strings.TrimSpace(key); key {
			case "WantedBy":
				links = append(links, other+".wants/"+name)
			case "RequiredBy":
				links = append(links, other+".requires/"+name)
			case "UpheldBy":
				links = append(links, other+".upholds/"+name)
			case "Alias":
				links = append(links, other)
			default:
				return nil, fmt.Errorf("[Install] has %.40q, which is not supported: WantedBy, RequiredBy, UpheldBy and Alias are", key)
			}
		}
	}
	if len(links) == 0 {
		return nil, fmt.Errorf("it is enabled, and its [Install] says nowhere")
	}
	return links, nil
}
