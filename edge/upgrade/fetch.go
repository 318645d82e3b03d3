// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// installation are the versions of the programs on this host, and where others come from.
type installation struct {
	versionDir
	*journal
	keys    trustedKeys
	sources []string
	blob    func(ctx context.Context, c resource.Content, progress func(received int64)) (io.ReadCloser, error)
}

// programs verifies a manifest, and returns the programs of a version for this host, and the newest format of the store that it reads; 0: it
// isn't said.
func (i *installation) programs(manifest []byte, signature, version string) (list []resource.ArtifactProgram, newest int, err error) {
	if err := i.keys.verify(manifest, signature); err != nil {
		return nil, 0, failf(resource.UpgradeFailedSignature, "the manifest of version %s: %v", version, err)
	}
	m, err := resource.ParseManifest(manifest)
	if err != nil {
		return nil, 0, failf(resource.UpgradeFailedArtifact, "version %s: %v", version, err)
	}
	if m.Version != version {
		return nil, 0, failf(resource.UpgradeFailedSignature, "the manifest that is signed is of version %s, and not %s", m.Version, version)
	}
	for _, p := range m.Of(runtime.GOARCH) {
		if p.Name == programCore {
			return m.Of(runtime.GOARCH), m.StoreFormat, nil
		}
	}
	return nil, 0, failf(resource.UpgradeFailedArchitecture, "version %s has no %s for %s", version, programCore, runtime.GOARCH)
}

// fetch fetches and verifies programs of a version, unless that is in place, and gives them their place. Versions that are not kept are removed before.
func (i *installation) fetch(ctx context.Context, o resource.UpgradeOrder, programs []resource.ArtifactProgram, kept []string) error {
	if i.verifyInstalled(o.Version) == nil && i.hasManifest(o) {
		return nil // by an earlier attempt
	}
	err := i.prune(kept...)
	if err != nil {
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	staging := i.staging(o.Version)
	var size, before int64
	for _, a := range programs {
		size += a.Size
	}
	if n, err := freeSpace(i.dir); err == nil && n < size+spareSpace {
		return failf(resource.UpgradeFailedDisk, "%s has %d bytes free, and the version needs %d and %d to spare", i.dir, n, size, int64(spareSpace))
	}
	err = datadir.MakeDir(staging)
	if err == nil {
		err = os.Chmod(staging, 0o755) //nolint:gosec // the core's user runs what is in it
	}
	for _, dir := range []string{i.dir, filepath.Dir(staging)} {
		if err == nil {
			err = os.Chmod(dir, 0o755) //nolint:gosec // as above
		}
	}
	if err != nil {
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	for _, a := range programs {
		if err := i.fetchProgram(ctx, staging, o.Source, a, func(received int64) { i.noteReceived(before+received, size) }); err != nil {
			return err
		}
		before += a.Size
	}
	for name, text := range map[string]string{manifestName: o.Manifest, signatureName: o.Signature} {
		path := filepath.Join(staging, name)
		if err := datadir.WriteFile(path, []byte(text)); err != nil {
			return toFailure(ctx, resource.UpgradeFailedDisk, err)
		}
	}
	i.hook("before the version is in place")
	return toFailure(ctx, resource.UpgradeFailedDisk, errors.Join(i.keepAgent(o.Version), i.install(o.Version)))
}

// keepAgent has a version that is fetched again, and has no agent now, keep the agent that the host is started with.
func (i *installation) keepAgent(version string) error {
	if i.linked(linkAgent) != version || !i.has(version, programAgent) {
		return nil
	}
	err := os.Link(filepath.Join(i.path(version), programAgent), filepath.Join(i.staging(version), programAgent))
	if errors.Is(err, os.ErrExist) { // it has one
		return nil
	}
	return err
}

// hasManifest says whether the manifest of a version that is in place is the order's.
func (i *installation) hasManifest(o resource.UpgradeOrder) bool {
	text, err := os.ReadFile(filepath.Join(i.path(o.Version), manifestName))
	return err == nil && string(text) == o.Manifest
}

// fetchProgram fetches one program and verifies it.
func (i *installation) fetchProgram(ctx context.Context, dir, source string, a resource.ArtifactProgram, progress func(int64)) error {
	var content io.ReadCloser
	var err error
	if source != "" {
		content, err = i.download(ctx, source, a)
	} else {
		content, err = i.blob(ctx, resource.Content{Digest: a.Digest, Size: a.Size}, progress)
	}
	if err != nil {
		return err
	}
	defer content.Close()
	path := filepath.Join(dir, a.Name)
	if err := writeVerified(path, 0o755, content, a.Size, a.Digest); err != nil {
		if source != "" && !errors.As(err, new(*Failure)) && !isDiskError(err) {
			return err // the connection was cut
		}
		return toFailure(ctx, resource.UpgradeFailedDisk, err)
	}
	return checkProgram(path)
}

// downloadTimeout bounds the time for which a server sends nothing.
const downloadTimeout = time.Minute

// download opens a program at a source that the node's settings allow: on an HTTPS server, or as a blob of a registry's repository. What comes is
// verified as any other content.
func (i *installation) download(ctx context.Context, source string, a resource.ArtifactProgram) (io.ReadCloser, error) {
	at := strings.TrimSuffix(source, "/") + "/" + a.Architecture + "/" + a.Name
	allowed := slices.ContainsFunc(i.sources, func(prefix string) bool { return strings.HasPrefix(at, prefix) })
	where, err := url.Parse(at)
	if !allowed || err != nil || slices.Contains(strings.Split(where.Path, "/"), "..") {
		return nil, failf(resource.UpgradeFailedRefused, "this node fetches nothing from %s: see upgrade.sources of its agent.yaml", at)
	}
	if registry, ok := strings.CutPrefix(strings.TrimSuffix(source, "/"), "oci://"); ok {
		host, repository, _ := strings.Cut(registry, "/")
		at = "https://" + host + "/v2/" + repository + "/blobs/" + a.Digest
	}
	client := sourceClient(downloadTimeout)
	content, challenge, err := httpGet(ctx, client, at, "")
	if challenge != "" && strings.HasPrefix(source, "oci://") {
		var token string
		if token, err = registryToken(ctx, client, challenge); err == nil {
			content, _, err = httpGet(ctx, client, at, token)
		}
	}
	if err != nil {
		return nil, err
	}
	return timedContent{content, downloadTimeout}, nil
}

// sourceClient asks servers of programs. Each part of an answer comes within limit: connection, TLS and headers.
func sourceClient(limit time.Duration) http.Client {
	return http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: limit}).DialContext, TLSHandshakeTimeout: limit, ResponseHeaderTimeout: limit,
			DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 5 || req.URL.Scheme != "https" {
				return errors.New("it redirects too often, or to something else than https")
			}
			return nil
		},
	}
}

// timedContent is a content of a server. It ends when nothing comes for limit.
type timedContent struct {
	io.ReadCloser
	limit time.Duration
}

func (w timedContent) Read(b []byte) (int, error) {
	silence := time.AfterFunc(w.limit, func() { _ = w.Close() }) // then the read returns
	n, err := w.ReadCloser.Read(b)
	if !silence.Stop() && err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("the server has sent nothing for %s", w.limit)
	}
	return n, err
}

// httpGet opens what a server has at an address. If it wants a login first, challenge is what it says about that, beside the error.
func httpGet(ctx context.Context, client http.Client, at, token string) (content io.ReadCloser, challenge string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, "", failf(resource.UpgradeFailedArtifact, "%v", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token) // it is not sent to another host to which the server redirects
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, "", nil
	}
	_ = res.Body.Close()
	err = fmt.Errorf("%s answers %s", at, res.Status)
	if res.StatusCode == http.StatusUnauthorized {
		challenge = res.Header.Get("WWW-Authenticate")
	}
	if res.StatusCode/100 == 4 && res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusRequestTimeout {
		err = failf(resource.UpgradeFailedArtifact, "%v", err)
	}
	return nil, challenge, err
}

var challengePattern = regexp.MustCompile(`([a-z]+)="([^"]*)"`)

// registryToken gets the token with which a registry lets anybody read a repository, as its answer 401 says:
// Bearer realm="https://auth.example.com/token",service="registry",scope="repository:edgebus:pull".
func registryToken(ctx context.Context, client http.Client, challenge string) (string, error) {
	said := map[string]string{}
	for _, m := range challengePattern.FindAllStringSubmatch(challenge, -1) {
		said[m[1]] = m[2]
	}
	realm, err := url.Parse(said["realm"])
	if scheme, _, _ := strings.Cut(challenge, " "); !strings.EqualFold(scheme, "Bearer") || err != nil || realm.Scheme != "https" {
		return "", failf(resource.UpgradeFailedArtifact, "the registry wants the login %q, and this version knows tokens over HTTPS only", challenge)
	}
	query := realm.Query()
	for _, name := range []string{"service", "scope"} {
		if said[name] != "" {
			query.Set(name, said[name])
		}
	}
	realm.RawQuery = query.Encode()
	answer, _, err := httpGet(ctx, client, realm.String(), "")
	if err != nil {
		return "", err
	}
	defer answer.Close()
	var got struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(answer, 1<<20)).Decode(&got); err != nil {
		return "", fmt.Errorf("the token of the registry: %w", err)
	}
	return cmp.Or(got.Token, got.Access), nil
}

// verifyInstalled verifies a version that is in place: its signature by the keys of today, and its programs. A version without a manifest was
// installed by hand: of it only the core has to be there.
func (i *installation) verifyInstalled(version string) error {
	dir := i.path(version)
	if !i.has(version, programCore) {
		return fmt.Errorf("%s is not there", filepath.Join(dir, programCore))
	}
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	signature, err := os.ReadFile(filepath.Join(dir, signatureName))
	if err != nil {
		return err
	}
	programs, _, err := i.programs(text, string(signature), version)
	if err != nil {
		return err
	}
	for _, a := range programs {
		if err := verifyFile(filepath.Join(dir, a.Name), a); err != nil {
			return err
		}
	}
	return nil
}

// verifyFile compares a program that is in place with the manifest.
func verifyFile(path string, a resource.ArtifactProgram) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkContent(a.Name, f, nil, a.Size, a.Digest)
}

// isDiskError says whether an error is of the disk and not of a connection.
func isDiskError(err error) bool {
	return datadir.IsFull(err) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) || errors.Is(err, os.ErrPermission)
}
