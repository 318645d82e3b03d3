// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/edgebus/edgebus/test/sourcestest"
	"github.com/edgebus/edgebus/topics/resource"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func client(change ...func(o *Options)) *Client {
	o := Options{Allow: loopback, Timeout: 10 * time.Second}
	for _, f := range change {
		f(&o)
	}
	return New(o)
}

func repo(url string, secret ...string) RepositoryAccess {
	r := RepositoryAccess{Spec: resource.RepositorySpec{URL: url}, Secret: map[string][]byte{}}
	for i := 0; i < len(secret); i += 2 {
		r.Secret[secret[i]] = []byte(secret[i+1])
	}
	return r
}

func requireReason(t *testing.T, want Reason, err error) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Reason, err.Error())
	require.NotContains(t, err.Error(), "verysecret")
}

// workingRepository is a repository with some commits.
func workingRepository(t *testing.T) (git *sourcestest.Git, commits []string) {
	git = sourcestest.NewGit(t)
	git.Write("etc/motd", "one\n", 0o644)
	git.Write("etc/bin/run", "#!/bin/sh\n", 0o755)
	git.Write("readme", "hi\n", 0o644)
	commits = append(commits, git.Commit())
	git.Run("tag", "-a", "v1", "-m", "one")
	git.Write("etc/motd", "two\n", 0o644)
	commits = append(commits, git.Commit())
	git.Run("config", "http.receivepack", "false")
	git.Run("config", "uploadpack.allowAnySHA1InWant", "true")
	return git, commits
}

// overHTTP serves a repository to ann with the password verysecret.
func overHTTP(t *testing.T, git *sourcestest.Git) *httptest.Server {
	h := git.Handler()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ann" || password != "verysecret" {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func ca(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func filesOf(t *testing.T, c *Client, r RepositoryAccess, commit, dir string) (files []File, err error) {
	err = c.Files(t.Context(), r, commit, dir, func(f File) error { files = append(files, f); return nil })
	return files, err
}

func bodyOf(t *testing.T, c *Client, r RepositoryAccess, suffix string) (body []byte, err error) {
	err = c.Get(t.Context(), r, suffix, func(in io.Reader) (err error) { body, err = io.ReadAll(in); return err })
	return body, err
}

func checkGit(t *testing.T, r RepositoryAccess, commits []string) {
	c := client()
	require.NoError(t, c.Accessible(t.Context(), r))
	for revision, want := range map[string]string{"main": commits[1], "v1": commits[0], "HEAD": commits[1], commits[0]: commits[0]} {
		got, err := c.Commit(t.Context(), r, revision)
		require.NoError(t, err)
		require.Equal(t, want, got, revision)
	}
	_, err := c.Commit(t.Context(), r, "nosuch")
	requireReason(t, NotFound, err)

	files, err := filesOf(t, c, r, commits[1], "/etc")
	require.NoError(t, err)
	require.Equal(t, []File{{"bin/run", 0o755, []byte("#!/bin/sh\n")}, {"motd", 0o644, []byte("two\n")}}, files)
	files, err = filesOf(t, c, r, commits[0], "etc/motd")
	require.NoError(t, err)
	require.Equal(t, []File{{".", 0o644, []byte("one\n")}}, files)
	files, err = filesOf(t, c, r, commits[1], "/")
	require.NoError(t, err)
	require.Len(t, files, 3)
	_, err = filesOf(t, c, r, commits[1], "nosuch")
	requireReason(t, NotFound, err)
	_, err = filesOf(t, client(func(o *Options) { o.MaxFiles = 1 }), r, commits[1], "etc")
	requireReason(t, TooLarge, err)
	_, err = filesOf(t, client(func(o *Options) { o.MaxBytes = 100 }), r, commits[1], "etc")
	requireReason(t, TooLarge, err)
}

func TestGitOverHTTPS(t *testing.T) {
	git, commits := workingRepository(t)
	server := overHTTP(t, git)
	url := server.URL + "/config.git"
	r := repo(url, "username", "ann", "password", "verysecret", "ca.crt", ca(server))
	checkGit(t, r, commits)

	unverified := repo(url, "username", "ann", "password", "verysecret")
	requireReason(t, Untrusted, client().Accessible(t.Context(), unverified))
	unverified.Spec.InsecureSkipVerify = true
	require.NoError(t, client().Accessible(t.Context(), unverified))
	requireReason(t, Unauthorized, client().Accessible(t.Context(), repo(url, "ca.crt", ca(server))))
	requireReason(t, Unauthorized, client().Accessible(t.Context(), repo(url, "username", "ann", "password", "verysecreto", "ca.crt", ca(server))))
	requireReason(t, NotFound, client().Accessible(t.Context(), repo(server.URL+"/no.git", "username", "ann", "password", "verysecret", "ca.crt", ca(server))))
	requireReason(t, NotAllowed, New(Options{}).Accessible(t.Context(), r))

	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(git.Dir, "link")))
	_, err := filesOf(t, client(), r, git.Commit(), "")
	requireReason(t, Invalid, err)
}

// sshServer is a server that lets anybody in.
func sshServer(t *testing.T) *ssh.ServerConfig {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	return config
}

// overSSH serves git-upload-pack to who has the key.
func overSSH(t *testing.T, dir string) (address, key, hostLine string) {
	newKey := func() (ssh.Signer, string) {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		block, err := ssh.MarshalPrivateKey(private, "")
		require.NoError(t, err)
		signer, err := ssh.NewSignerFromKey(private)
		require.NoError(t, err)
		return signer, string(pem.EncodeToMemory(block))
	}
	host, _ := newKey()
	user, key := newKey()
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if string(k.Marshal()) != string(user.PublicKey().Marshal()) {
			return nil, errors.New("not this key")
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	at := listenTCP(t, func(conn net.Conn) { serveSSH(conn, config, dir) })
	return "ssh://git@" + at + "/config.git", key, knownhosts.Line([]string{knownhosts.Normalize(at)}, host.PublicKey())
}

func serveSSH(conn net.Conn, config *ssh.ServerConfig, dir string) {
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range requests {
				_ = r.Reply(r.Type == "exec", nil)
				if r.Type != "exec" {
					continue
				}
				cmd := exec.Command("git", "-c", "safe.directory=*", "upload-pack", dir)
				if !strings.Contains(string(r.Payload), "'/config.git'") {
					cmd = exec.Command("sh", "-c", "echo >&2 'ERROR: Repository not found.'; exit 1")
				}
				cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
				stdin, err := cmd.StdinPipe()
				if err != nil || cmd.Start() != nil {
					return
				}
				go func() { _, _ = io.Copy(stdin, channel); stdin.Close() }()
				_ = cmd.Wait()
				_, _ = channel.SendRequest("exit-status", false, []byte{0, 0, 0, 0})
				channel.Close()
			}
		}()
	}
}

func TestGitOverSSH(t *testing.T) {
	git, commits := workingRepository(t)
	url, key, hostLine := overSSH(t, git.Dir)
	r := repo(url, "ssh-privatekey", key, "known_hosts", hostLine)
	checkGit(t, r, commits)

	_, other, otherLine := overSSH(t, git.Dir)
	requireReason(t, Unauthorized, client().Accessible(t.Context(), repo(url, "ssh-privatekey", other, "known_hosts", hostLine)))
	requireReason(t, Untrusted, client().Accessible(t.Context(), repo(url, "ssh-privatekey", key, "known_hosts", otherLine)))
	requireReason(t, Untrusted, client().Accessible(t.Context(), repo(url, "ssh-privatekey", key)))
	requireReason(t, Invalid, client().Accessible(t.Context(), repo(url, "known_hosts", hostLine)))
	requireReason(t, NotAllowed, New(Options{}).Accessible(t.Context(), r))
	requireReason(t, NotFound, client().Accessible(t.Context(), repo(strings.Replace(url, "config", "no'such", 1), "ssh-privatekey", key, "known_hosts", hostLine)))
	r.Secret["known_hosts"], r.Spec.InsecureSkipVerify = nil, true
	require.NoError(t, client().Accessible(t.Context(), r))
}

// A server with keys of several types, and a certificate, shows what known_hosts has.
func TestHostKeysOfOneType(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(edKey, "")
	require.NoError(t, err)
	server := &ssh.ServerConfig{NoClientAuth: true}
	var hosts []ssh.PublicKey
	for _, key := range []crypto.Signer{rsaKey, ecdsaKey, edKey} {
		signer, err := ssh.NewSignerFromKey(key)
		require.NoError(t, err)
		server.AddHostKey(signer)
		hosts = append(hosts, signer.PublicKey())
	}
	authority, err := ssh.NewSignerFromKey(rsaKey)
	require.NoError(t, err)
	certificate := &ssh.Certificate{Key: hosts[2], CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity}
	require.NoError(t, certificate.SignCert(rand.Reader, authority))
	host, err := ssh.NewSignerFromKey(edKey)
	require.NoError(t, err)
	certified, err := ssh.NewCertSigner(certificate, host)
	require.NoError(t, err)
	server.AddHostKey(certified)
	address := listenTCP(t, func(conn net.Conn) { _, _, _, _ = ssh.NewServerConn(conn, server) })
	dial := func(knownHosts string) error {
		config, err := sshConfig(repo("ssh://x/y", "ssh-privatekey", string(pem.EncodeToMemory(block)), "known_hosts", knownHosts), address)
		require.NoError(t, err)
		conn, err := ssh.Dial("tcp", address, config)
		if err == nil {
			_ = conn.Close() // the server may have done so
		}
		return err
	}
	at := []string{knownhosts.Normalize(address)}
	for _, host := range hosts {
		require.NoError(t, dial(knownhosts.Line(at, host)), host.Type())
		require.NoError(t, dial(knownhosts.Line([]string{knownhosts.HashHostname(at[0])}, host)), host.Type())
	}
	require.NoError(t, dial("@cert-authority "+knownhosts.Line(at, hosts[0])), "a certificate")

	other, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	stranger, err := ssh.NewSignerFromKey(other)
	require.NoError(t, err)
	requireReason(t, Untrusted, dial(knownhosts.Line(at, stranger.PublicKey())))
}

// At SSH's own port known_hosts has the name of a host alone, at any other port the port, too.
func TestHostKeysOfAnyPort(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	for _, address := range []string{"git.example:22", "git.example:2222", "[2001:db8::1]:22"} {
		line := knownhosts.Line([]string{address}, signer.PublicKey())
		config, err := sshConfig(repo("ssh://git.example/x", "ssh-privatekey", string(pem.EncodeToMemory(block)), "known_hosts", line), address)
		require.NoError(t, err)
		remote := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:22"))
		require.NoError(t, config.HostKeyCallback(address, remote, signer.PublicKey()), line)
		config, err = sshConfig(repo("ssh://git.example/x", "ssh-privatekey", string(pem.EncodeToMemory(block)), "known_hosts", line), "other.example:22")
		require.NoError(t, err)
		requireReason(t, Untrusted, config.HostKeyCallback("other.example:22", remote, signer.PublicKey()))
	}
}

func TestFilesAreReadOverHTTP(t *testing.T) {
	endless := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/config/site":
			fmt.Fprint(w, "hello "+r.Header.Get("Authorization"))
		case "/slow":
			<-endless
		case "/big":
			for range 100 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() { close(endless); server.Close() })
	r := repo(server.URL, "token", "verysecret")
	body, err := bodyOf(t, client(), r, "/config/site")
	require.NoError(t, err)
	require.Equal(t, "hello Bearer verysecret", string(body))
	_, err = bodyOf(t, client(), r, "/nosuch")
	requireReason(t, NotFound, err)
	_, err = bodyOf(t, client(func(o *Options) { o.Timeout = 50 * time.Millisecond }), r, "/slow")
	requireReason(t, TimedOut, err)
	_, err = bodyOf(t, client(func(o *Options) { o.MaxBytes = 10 << 10 }), r, "/big")
	requireReason(t, TooLarge, err)
	_, err = bodyOf(t, client(), r, "/away")
	requireReason(t, NotAllowed, err)
	_, err = bodyOf(t, New(Options{}), r, "/config/site")
	requireReason(t, NotAllowed, err)
	_, err = bodyOf(t, client(), repo("http://127.0.0.1:1"), "/")
	requireReason(t, Unavailable, err)
	for _, bad := range []string{"ca.crt", "tls.crt"} {
		_, err = bodyOf(t, client(), repo(server.URL, bad, "rubbish"), "/")
		requireReason(t, Invalid, err)
	}
}

func TestTagsAreResolvedToDigests(t *testing.T) {
	at, _ := sourcestest.Registry(t)
	push := func() string {
		image, err := random.Image(100, 1)
		require.NoError(t, err)
		ref, err := name.ParseReference(at+"/app:v1", name.Insecure)
		require.NoError(t, err)
		require.NoError(t, remote.Write(ref, image, remote.WithContext(context.Background())))
		digest, err := image.Digest()
		require.NoError(t, err)
		return digest.String()
	}
	r := repo("http://" + at)
	r.Spec.Type = "oci"
	require.NoError(t, client().Accessible(t.Context(), r))
	first := push()
	got, err := client().Digest(t.Context(), r, at+"/app:v1")
	require.NoError(t, err)
	require.Equal(t, first, got)
	second := push()
	got, err = client().Digest(t.Context(), r, at+"/app:v1")
	require.NoError(t, err)
	require.Equal(t, second, got, "the tag has moved")
	got, err = client().Digest(t.Context(), r, at+"/app@"+first)
	require.NoError(t, err)
	require.Equal(t, first, got)
	_, err = client().Digest(t.Context(), r, at+"/app:v2")
	requireReason(t, NotFound, err)
	_, err = client().Digest(t.Context(), r, "What is this?")
	requireReason(t, Invalid, err)
	_, err = New(Options{}).Digest(t.Context(), r, at+"/app:v1")
	requireReason(t, NotAllowed, err)
	r.Spec.URL = "http://127.0.0.1:1"
	requireReason(t, Unavailable, client().Accessible(t.Context(), r))
}

func TestOnlyAllowedAddressesAreReached(t *testing.T) {
	own := func() (list []net.Addr, err error) {
		for _, text := range []string{"127.0.0.1/8", "192.0.2.7/24", "2001:db8::7/64", "fe80::7/64"} {
			p := netip.MustParsePrefix(text)
			list = append(list, &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
		}
		return list, nil
	}
	c := New(Options{OwnAddresses: own, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32"), netip.MustParsePrefix("64:ff9b::7f00:3/128")}})
	for _, a := range []string{
		"127.0.0.1", "::1", "169.254.169.254", "fe80::1%eth0", "0.0.0.0", "::", "::ffff:127.0.0.1", "224.0.0.1", // its own, link-local
		"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "::ffff:100.100.100.200", // metadata
		"192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7", // of its interfaces
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::c000:207", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "::127.0.0.1", // by a gateway
	} {
		requireReason(t, NotAllowed, c.allowed(netip.MustParseAddr(a)))
	}
	for _, a := range []string{
		"127.0.0.2", "10.0.0.1", "192.0.2.1", "2001:db8::1", "100.100.100.201", "64:ff9b::7f00:2", "64:ff9b::7f00:3", "64:ff9b::c000:201", "2002:c000:201::1", "fd00::1",
	} {
		require.NoError(t, c.allowed(netip.MustParseAddr(a)), a)
	}
	c = New(Options{OwnAddresses: func() ([]net.Addr, error) { return nil, errors.New("no") }})
	requireReason(t, Unavailable, c.allowed(netip.MustParseAddr("192.0.2.1")))

	// The address of an interface of this host is refused without being told which it is.
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		requireReason(t, NotAllowed, New(Options{}).allowed(netip.MustParsePrefix(a.String()).Addr()))
	}
}

// Credentials are sent to the host of the Repository's address only: not to where a redirect or a registry's challenge leads, and a
// suffix leads nowhere else.
func TestSecretsStayAtTheirHost(t *testing.T) {
	var got atomic.Value
	got.Store("")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(got.Load().(string) + r.Header.Get("Authorization"))
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"):
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+elsewhere.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	own := repo(server.URL, "username", "ann", "password", "verysecret")
	_, err := bodyOf(t, client(), own, "/moved")
	require.NoError(t, err)
	require.Error(t, client().Accessible(t.Context(), own)) // git, which follows redirects with its credentials
	own.Spec.Type = "oci"
	require.Error(t, client().Accessible(t.Context(), own))
	_, err = client().Digest(t.Context(), own, strings.TrimPrefix(server.URL, "http://")+"/app:v1")
	require.Error(t, err)
	require.Empty(t, got.Load())

	_, err = bodyOf(t, client(), repo("http://"+strings.TrimPrefix(elsewhere.URL, "http://"), "token", "verysecret"), "/x")
	require.NoError(t, err)
	require.Equal(t, "Bearer verysecret", got.Load(), "to its own host they are")
	for _, suffix := range []string{"@" + strings.TrimPrefix(elsewhere.URL, "http://"), ".evil.example/", ":1/", "x", "//evil.example"} {
		_, err := sourceAddress(repo("https://host.example", "token", "verysecret"), suffix)
		if suffix == "//evil.example" {
			require.NoError(t, err, "it is a path of the host")
			continue
		}
		requireReason(t, Invalid, err)
	}
	for host, domain := range map[string]string{"registry-1.docker.io": "docker.io", "127.0.0.1": "", "localhost": "", "a.b.example.co.uk": "example.co.uk"} {
		require.Equal(t, domain, registeredDomain(host))
	}
	require.True(t, hostBoundTransport{scheme: "https", host: "a.example:443"}.is("https", "a.example"))
}

// What a server, or a proxy before it, may take for the directory above is never asked for.
func TestASuffixStaysBelowTheRepositorysPath(t *testing.T) {
	base := repo("https://host.example/team", "token", "verysecret")
	for _, suffix := range []string{
		"/../other", "/a/../../other", "/..", "/%2e%2e/other", "/%2E./other", "/a%2f..%2f..%2fother", "/%252e%252e/other", `/..\other`, "/a%5c..%5cother", "/..;x=y/other", "/./x",
		"/a/..?v=1", "/%zz", "/a%2", "/a\x7f",
	} {
		_, err := sourceAddress(base, suffix)
		requireReason(t, Invalid, err)
		n := resource.Node{Metadata: resource.Meta{Name: "n"}}
		n.Spec.Config = []resource.ConfigItem{{
			Name: "x", ConfigType: resource.ConfigHTTP, HTTPRef: &resource.HTTPRef{Repository: "web", Suffix: suffix, FilePath: "/etc/x"},
		}}
		require.ErrorContains(t, n.Validate(), "spec.config[0].httpRef.suffix", suffix)
		if strings.Contains(suffix, "%zz") {
			require.ErrorContains(t, n.Validate(), `"/%zz": must be a part of an address: each '%' stands before two hexadecimal digits`)
		}
	}
	for _, suffix := range []string{"/a/b", "/a..b/...", "/100%25", "/x?of=../y", "?v=1"} {
		at, err := sourceAddress(base, suffix)
		require.NoError(t, err)
		require.Equal(t, "https://host.example/team"+suffix, at)
	}
}
