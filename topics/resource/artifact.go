// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Artifact is a version of the programs that run on nodes, signed by its author. The programs are blobs of the hub, or at the
// source.
type Artifact struct {
	TypeMeta
	Metadata Meta         `json:"metadata"`
	Spec     ArtifactSpec `json:"spec"`
}

// ArtifactSpec is the content of an Artifact. It is immutable, because nodes may be downloading it.
type ArtifactSpec struct {
	// Manifest is the JSON text of a Manifest, as it was signed: at most 64 KiB.
	Manifest string `json:"manifest"`
	// Signature is the signature of the manifest in minisign's format: the four lines of a .minisig file, at most 2 KiB.
	Signature string `json:"signature"`
	// Source is the address from which nodes download the programs, instead of from the hub. https://host/path, to which
	// /{architecture}/{name} is appended; or oci://registry/repository, in which the programs are blobs that are found by their
	// digests.
	Source string `json:"source,omitempty"`
}

// repositoryForm is a slash and the name of a repository in the OCI distribution specification.
var repositoryForm = regexp.MustCompile(`^(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+$`)

// Manifest is what the author of an Artifact signs: the programs of one version, by architecture.
type Manifest struct {
	// Version is the version of all the programs.
	Version string `json:"version"`
	// StoreFormat is the newest format of the core's store that the version can read and write; 0: not stated. A node whose
	// store has a newer format refuses the version.
	StoreFormat int `json:"storeFormat,omitempty"`
	// Programs are the programs. edgecore must be among them.
	Programs []ArtifactProgram `json:"programs"`
}

// ArtifactProgram is one program for one architecture.
type ArtifactProgram struct {
	// Name is the name of the program and of its file: edgecore, edgeagent, mapper-modbus, …
	Name string `json:"name"`
	// Architecture is the processor architecture in Go's words: amd64, arm64, arm, …
	Architecture string `json:"architecture"`
	// Digest is sha256: and the SHA-256 of the file in hexadecimal.
	Digest string `json:"digest"`
	// Size is the size of the file in bytes, from 1 to 1 GiB.
	Size int64 `json:"size"`
}

const (
	maxManifest  = 64 << 10
	maxSignature = 2 << 10
	// MaxProgram is the largest Size of an ArtifactProgram, in bytes.
	MaxProgram = 1 << 30
)

var programName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Of returns the programs for an architecture.
func (b Manifest) Of(architecture string) (list []ArtifactProgram) {
	for _, p := range b.Programs {
		if p.Architecture == architecture {
			list = append(list, p)
		}
	}
	return list
}

// ParseManifest reads a manifest, and checks everything that needs no key. Unknown fields are refused, because all that was
// signed must be understood.
func ParseManifest(manifest []byte) (b Manifest, err error) {
	if len(manifest) > maxManifest {
		return b, Errorf(TooLarge, "manifest", "%d bytes; a manifest has at most %d", len(manifest), maxManifest)
	}
	d := json.NewDecoder(bytes.NewReader(manifest))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return b, Errorf(Invalid, "manifest", "is not what it must be: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return b, Errorf(Invalid, "manifest", "has more after its JSON object")
	}
	var p causeList
	checkRequired(&p, "manifest.version", b.Version)
	checkVersion(&p, "manifest.version", b.Version)
	if b.StoreFormat < 0 {
		p.add("manifest.storeFormat", "%d: must be 0 or more", b.StoreFormat)
	}
	p.tooMany("manifest.programs", len(b.Programs))
	seen, core := uniqueNames{}, false
	for i, f := range b.Programs[:min(len(b.Programs), maxListed)] {
		at := fmt.Sprintf("manifest.programs[%d]", i)
		f.check(&p, at)
		seen.check(&p, at, f.Architecture+"/"+f.Name)
		core = core || f.Name == "edgecore"
	}
	if !core {
		p.add("manifest.programs", "has no edgecore: it is what an upgrade replaces")
	}
	return b, p.err()
}

func (f ArtifactProgram) check(p *causeList, at string) {
	if !programName.MatchString(f.Name) {
		p.add(at+".name", "%s: must be the name of a program, such as edgecore: a-z, 0-9 and -", clipText(f.Name))
	}
	if !programName.MatchString(f.Architecture) {
		p.add(at+".architecture", "%s: must be an architecture, such as arm64", clipText(f.Architecture))
	}
	if _, err := ParseDigest(f.Digest); err != nil {
		p.addErr(at+".digest", err)
	}
	if f.Size < 1 || f.Size > MaxProgram {
		p.add(at+".size", "%d: must be 1 to %d bytes", f.Size, int64(MaxProgram))
	}
}

// Validate checks an Artifact, but not its signature: the hub has no keys, and nodes verify signatures themselves.
func (a Artifact) Validate() error {
	var p causeList
	a.Metadata.check(&p)
	if _, err := ParseManifest([]byte(a.Spec.Manifest)); err != nil {
		p.addErr("spec.manifest", err)
	}
	if lines := strings.Split(strings.TrimSuffix(a.Spec.Signature, "\n"), "\n"); len(a.Spec.Signature) > maxSignature || len(lines) != 4 {
		p.add("spec.signature", "must be the four lines that minisign writes, of at most %d bytes", maxSignature)
	}
	if s := a.Spec.Source; s != "" {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "https" && u.Scheme != "oci" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || slices.Contains(strings.Split(u.Path, "/"), ".."):
			p.add("spec.source", "%s: must be https://host/path or oci://registry/repository", clipText(s))
		case u.Scheme == "oci" && !repositoryForm.MatchString(u.Path):
			p.add("spec.source", "%s: must be oci://registry/repository, without a tag or digest, in lower case", clipText(s))
		}
	}
	return p.err()
}

// CheckUpdate reports whether an Artifact may replace prev: its spec must be the same.
func (a Artifact) CheckUpdate(prev Artifact) error {
	var p causeList
	checkUnchanged(&p, "spec", prev.Spec, a.Spec)
	return p.err()
}
