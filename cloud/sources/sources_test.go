package sources

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
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
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

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

func repo(url string, secret ...string) Repo {
	r := Repo{Spec: resource.RepositorySpec{URL: url}, Secret: map[string][]byte{}}
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

// git runs git in a directory, and returns what it prints.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.TrimSpace(string(out))
}

// work is a repository with some commits; its parent directory is what servers serve.
func work(t *testing.T) (dir string, commits []string) {
	dir = filepath.Join(t.TempDir(), "config.git")
	require.NoError(t, os.Mkdir(dir, 0o755))
	git(t, dir, "init", "-q", "-b", "main")
	write := func(name, text string, mode os.FileMode) {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), mode))
	}
	commit := func() {
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "-q", "-m", "x")
		commits = append(commits, git(t, dir, "rev-parse", "HEAD"))
	}
	write("etc/motd", "one\n", 0o644)
	write("etc/bin/run", "#!/bin/sh\n", 0o755)
	write("readme", "hi\n", 0o644)
	commit()
	git(t, dir, "tag", "-a", "v1", "-m", "one")
	write("etc/motd", "two\n", 0o644)
	commit()
	git(t, dir, "config", "http.receivepack", "false")
	git(t, dir, "config", "uploadpack.allowAnySHA1InWant", "true")
	return dir, commits
}

// overHTTP serves a repository by git's own program, to ann with the password verysecret.
func overHTTP(t *testing.T, dir string) *httptest.Server {
	path := git(t, dir, "--exec-path")
	h := &cgi.Handler{Path: filepath.Join(path, "git-http-backend"), Env: []string{
		"GIT_PROJECT_ROOT=" + filepath.Dir(dir), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}
	return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ann" || password != "verysecret" {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
}

func ca(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func checkGit(t *testing.T, r Repo, commits []string) {
	c := client()
	require.NoError(t, c.Accessible(t.Context(), r))
	for revision, want := range map[string]string{"main": commits[1], "v1": commits[0], "HEAD": commits[1], commits[0]: commits[0]} {
		got, err := c.Commit(t.Context(), r, revision)
		require.NoError(t, err)
		require.Equal(t, want, got, revision)
	}
	_, err := c.Commit(t.Context(), r, "nosuch")
	requireReason(t, NotFound, err)

	files, err := c.Files(t.Context(), r, commits[1], "/etc")
	require.NoError(t, err)
	require.Equal(t, []File{{"bin/run", 0o755, []byte("#!/bin/sh\n")}, {"motd", 0o644, []byte("two\n")}}, files)
	files, err = c.Files(t.Context(), r, commits[0], "etc/motd")
	require.NoError(t, err)
	require.Equal(t, []File{{".", 0o644, []byte("one\n")}}, files)
	files, err = c.Files(t.Context(), r, commits[1], "/")
	require.NoError(t, err)
	require.Len(t, files, 3)
	_, err = c.Files(t.Context(), r, commits[1], "nosuch")
	requireReason(t, NotFound, err)
	_, err = client(func(o *Options) { o.MaxFiles = 1 }).Files(t.Context(), r, commits[1], "etc")
	requireReason(t, TooLarge, err)
	_, err = client(func(o *Options) { o.MaxBytes = 100 }).Files(t.Context(), r, commits[1], "etc")
	requireReason(t, TooLarge, err)
}

func TestGitOverHTTPS(t *testing.T) {
	dir, commits := work(t)
	server := overHTTP(t, dir)
	t.Cleanup(server.Close)
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

	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "a link")
	_, err := client().Files(t.Context(), r, git(t, dir, "rev-parse", "HEAD"), "")
	requireReason(t, Invalid, err)
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveSSH(conn, config, dir)
		}
	}()
	at := l.Addr().String()
	return "ssh://git@" + at + "/config.git", key, knownhosts.Line([]string{knownhosts.Normalize(at)}, host.PublicKey())
}

func serveSSH(conn net.Conn, config *ssh.ServerConfig, dir string) {
	defer conn.Close()
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
				cmd.Stdout = channel
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
	dir, commits := work(t)
	url, key, hostLine := overSSH(t, dir)
	r := repo(url, "ssh-privatekey", key, "known_hosts", hostLine)
	checkGit(t, r, commits)

	_, other, otherLine := overSSH(t, dir)
	requireReason(t, Unauthorized, client().Accessible(t.Context(), repo(url, "ssh-privatekey", other, "known_hosts", hostLine)))
	requireReason(t, Untrusted, client().Accessible(t.Context(), repo(url, "ssh-privatekey", key, "known_hosts", otherLine)))
	requireReason(t, Untrusted, client().Accessible(t.Context(), repo(url, "ssh-privatekey", key)))
	requireReason(t, Invalid, client().Accessible(t.Context(), repo(url, "known_hosts", hostLine)))
	requireReason(t, NotAllowed, New(Options{}).Accessible(t.Context(), r))
	r.Secret["known_hosts"], r.Spec.InsecureSkipVerify = nil, true
	require.NoError(t, client().Accessible(t.Context(), r))
}

func TestHTTP(t *testing.T) {
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
	body, err := client().Get(t.Context(), r, "/config/site")
	require.NoError(t, err)
	require.Equal(t, "hello Bearer verysecret", string(body))
	_, err = client().Get(t.Context(), r, "/nosuch")
	requireReason(t, NotFound, err)
	_, err = client(func(o *Options) { o.Timeout = 50 * time.Millisecond }).Get(t.Context(), r, "/slow")
	requireReason(t, TimedOut, err)
	_, err = client(func(o *Options) { o.MaxBytes = 10 << 10 }).Get(t.Context(), r, "/big")
	requireReason(t, TooLarge, err)
	_, err = client().Get(t.Context(), r, "/away")
	requireReason(t, NotAllowed, err)
	_, err = New(Options{}).Get(t.Context(), r, "/config/site")
	requireReason(t, NotAllowed, err)
	_, err = client().Get(t.Context(), repo("http://127.0.0.1:1"), "/")
	requireReason(t, Unavailable, err)
	for _, bad := range []string{"ca.crt", "tls.crt"} {
		_, err = client().Get(t.Context(), repo(server.URL, bad, "rubbish"), "/")
		requireReason(t, Invalid, err)
	}
}

func TestImages(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
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
	r := repo(server.URL)
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

func TestAddresses(t *testing.T) {
	c := New(Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}})
	for _, a := range []string{"127.0.0.1", "::1", "169.254.169.254", "fe80::1%eth0", "0.0.0.0", "::", "::ffff:127.0.0.1", "224.0.0.1"} {
		requireReason(t, NotAllowed, c.allowed(netip.MustParseAddr(a)))
	}
	for _, a := range []string{"127.0.0.2", "10.0.0.1", "192.0.2.1", "2001:db8::1"} {
		require.NoError(t, c.allowed(netip.MustParseAddr(a)))
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
	_, err := client().Get(t.Context(), own, "/moved")
	require.NoError(t, err)
	require.Error(t, client().Accessible(t.Context(), own)) // git, which follows redirects with its credentials
	own.Spec.Type = "oci"
	require.Error(t, client().Accessible(t.Context(), own))
	_, err = client().Digest(t.Context(), own, strings.TrimPrefix(server.URL, "http://")+"/app:v1")
	require.Error(t, err)
	require.Empty(t, got.Load())

	_, err = client().Get(t.Context(), repo("http://"+strings.TrimPrefix(elsewhere.URL, "http://"), "token", "verysecret"), "/x")
	require.NoError(t, err)
	require.Equal(t, "Bearer verysecret", got.Load(), "to its own host they are")
	for _, suffix := range []string{"@" + strings.TrimPrefix(elsewhere.URL, "http://"), ".evil.example/", ":1/", "x", "//evil.example"} {
		_, err := addressOf(repo("https://host.example", "token", "verysecret"), suffix)
		if suffix == "//evil.example" {
			require.NoError(t, err, "it is a path of the host")
			continue
		}
		requireReason(t, Invalid, err)
	}
	for host, domain := range map[string]string{"registry-1.docker.io": "docker.io", "127.0.0.1": "", "localhost": "", "a.b.example.co.uk": "example.co.uk"} {
		require.Equal(t, domain, domainOf(host))
	}
	require.True(t, ownHost{scheme: "https", host: "a.example:443"}.is("https", "a.example"))
}
