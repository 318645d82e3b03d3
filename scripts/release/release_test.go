// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
)

func TestTheListOfLicencesIsThatOfWhatIsLinked(t *testing.T) {
	b := newBuild(t, "v0.9.0")
	list, err := b.linkedModules()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.root, licenceList)
	if os.Getenv("GOLDEN") == "write" {
		if err := os.WriteFile(file, licenceLines(list), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(listed, licenceLines(list)) {
		t.Errorf("%s is not what the programs are linked with: make golden writes it anew; look at the licences that come with it\n%s", licenceList, licenceLines(list))
	}
	for _, m := range list {
		for _, licence := range m.licences {
			if strings.Contains(licence, "GPL") || strings.HasPrefix(licence, "EPL") {
				t.Errorf("%s is under %s, which programs that are linked statically can't be given on with as they are", m.path, licence)
			}
		}
	}
	notice, err := b.notice()
	if err != nil || !bytes.Contains(notice, []byte("github.com/eclipse/paho.golang v")) || !bytes.Contains(notice, []byte("Eclipse Distribution License")) {
		t.Errorf("the notice doesn't have the licence of paho (%v)", err)
	}
}

// Two builds in different directories are the same: for one program, of which there is everything that a release has.
func TestTwoBuildsAreTheSameBytes(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "minisign.key")
	public, key, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EDGEBUS_RELEASE_KEY", secret)
	keys := t.TempDir()
	newKeys := exec.Command(cosignProgram(t), "generate-key-pair")
	newKeys.Dir = keys
	newKeys.Env = append(os.Environ(), "COSIGN_PASSWORD=a password")
	if out, err := newKeys.CombinedOutput(); err != nil {
		t.Fatalf("cosign generate-key-pair: %v: %s", err, out)
	}
	t.Setenv("EDGEBUS_COSIGN_KEY", filepath.Join(keys, "cosign.key"))
	t.Setenv("COSIGN_PASSWORD", "a password")
	var sums [2]string
	for n := range sums {
		b := newBuild(t, "v0.9.0")
		b.built = ""
		b.mains = map[string]string{"mapper-virtual": b.mains["mapper-virtual"]}
		if err := buildOfOne(b); err != nil {
			t.Fatal(err)
		}
		checkSignatures(t, b.out, public.String(), filepath.Join(keys, "cosign.pub"))
		list, err := os.ReadFile(filepath.Join(b.out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		signature, err := os.ReadFile(filepath.Join(b.out, "SHA256SUMS.minisig"))
		if err != nil || !minisign.Verify(public, list, signature) {
			t.Errorf("the signature isn't one of the checksums (%v)", err)
		}
		cmd := exec.Command("sha256sum", "--check", "--quiet", "SHA256SUMS")
		cmd.Dir = b.out
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("sha256sum: %v: %s", err, out)
		}
		sums[n] = string(list)
	}
	if sums[0] != sums[1] {
		t.Errorf("the first build is\n%sand the second\n%s", sums[0], sums[1])
	}
	for _, kind := range []string{".deb", ".rpm", ".oci.tar", ".docker.tar", ".tar.gz", ".cdx.json", "edgebus-hub-0.9.0.tgz"} {
		if !strings.Contains(sums[0], kind+"\n") {
			t.Errorf("there is no %s in\n%s", kind, sums[0])
		}
	}
}

// cosignProgram is cosign, which the Makefile builds from its module.
func cosignProgram(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../.tools/cosign")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: make packages-test builds it", err)
	}
	return path
}

// checkSignatures has the programs of others verify the signatures, as users do; and a list that was changed is refused.
func checkSignatures(t *testing.T, dir, minisignKey, cosignKey string) {
	t.Helper()
	list, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	forged := filepath.Join(t.TempDir(), "SHA256SUMS")
	if err := os.WriteFile(forged, append(list, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verify := range [][]string{
		{"minisign", "-V", "-P", minisignKey, "-x", filepath.Join(dir, "SHA256SUMS.minisig"), "-m"},
		{cosignProgram(t), "verify-blob", "--key", cosignKey, "--signature", filepath.Join(dir, "SHA256SUMS.sig"), "--insecure-ignore-tlog=true"},
	} {
		if out, err := exec.Command(verify[0], append(verify[1:], filepath.Join(dir, "SHA256SUMS"))...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", filepath.Base(verify[0]), err, out)
		}
		if out, err := exec.Command(verify[0], append(verify[1:], forged)...).CombinedOutput(); err == nil {
			t.Errorf("%s takes a list that was changed: %s", filepath.Base(verify[0]), out)
		}
	}
}

// buildOfOne is makeRelease for a build of one mapper.
func buildOfOne(b *releaseBuild) error {
	arch, mapper := b.arches[0], b.mappers()[0]
	if err := b.manual(mapper); err != nil {
		return err
	}
	for _, p := range b.packages() {
		if p.program != mapper {
			continue
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := b.pack(p, arch, format); err != nil {
				return err
			}
		}
	}
	for _, i := range b.images() {
		if i.program == mapper {
			if err := b.writeImage(i); err != nil {
				return err
			}
		}
	}
	if err := b.writeArchive(arch, b.programs()); err != nil {
		return err
	}
	if err := b.writeSBOMs(); err != nil {
		return err
	}
	if err := b.writeChart(); err != nil {
		return err
	}
	return b.writeChecksums()
}
