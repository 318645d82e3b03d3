// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/edgebus/edgebus/topics/resource"
)

// endsSoon waits for a call that has to end by itself.
func endsSoon(t *testing.T, call func() error) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(waitTimeout):
		t.Error("it never ends")
		return nil
	}
}

// listenTCP hands each connection to serve, and closes them all at the end of the test.
func listenTCP(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); serve(conn) }()
		}
	}()
	return l.Addr().String()
}

// writeSlowly sends a byte now and then, without end.
func writeSlowly(w io.Writer, text string) {
	for i := 0; ; i++ {
		if _, err := w.Write([]byte{text[i%len(text)]}); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond) // slow is what it is
	}
}

// A read ends in time wherever the server stops: connected, in the handshake, before its first answer, in the middle of one.
func TestServersThatStopAnswering(t *testing.T) {
	t.Parallel()
	silent := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	git, commits := workingRepository(t)
	_, key, _ := overSSH(t, git.Dir)
	afterHandshake := func(then func(c ssh.Channel)) func(net.Conn) {
		return func(conn net.Conn) {
			_, channels, requests, err := ssh.NewServerConn(conn, sshServer(t))
			if err != nil {
				return
			}
			go ssh.DiscardRequests(requests)
			for offered := range channels {
				if then == nil {
					continue // neither accepted nor refused
				}
				c, requests, err := offered.Accept()
				if err != nil {
					return
				}
				go func() {
					for r := range requests {
						_ = r.Reply(true, nil)
						go then(c)
					}
				}()
			}
		}
	}
	greeting, err := exec.Command("git", "-c", "safe.directory=*", "upload-pack", "--advertise-refs", git.Dir).Output()
	require.NoError(t, err)
	greeting = greeting[:len(greeting):len(greeting)]
	for stage, serve := range map[string]func(net.Conn){
		"connected":        silent,
		"banner drips":     func(c net.Conn) { writeSlowly(c, "hello\r\n") },
		"after its banner": func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-x\r\n"); silent(c) },
		"no channel":       afterHandshake(nil),
		"no greeting":      afterHandshake(func(ssh.Channel) {}),
		"greeting drips":   afterHandshake(func(c ssh.Channel) { writeSlowly(c, "0fff") }),
		"no exit":          afterHandshake(func(c ssh.Channel) { _ = c.CloseWrite() }),
		"no pack":          afterHandshake(func(c ssh.Channel) { _, _ = c.Write(greeting) }),
		"pack drips":       afterHandshake(func(c ssh.Channel) { _, _ = c.Write(append(greeting, "00000008NAK\n"...)); writeSlowly(c, "PACK") }),
	} {
		r := repo("ssh://git@"+listenTCP(t, serve)+"/config.git", "ssh-privatekey", key)
		r.Spec.InsecureSkipVerify = true
		c := client(func(o *Options) { o.Timeout = 300 * time.Millisecond })
		err := endsSoon(t, func() error { _, err := filesOf(t, c, r, commits[1], "etc"); return err })
		t.Log(stage, err)
		requireReason(t, TimedOut, err)
	}
	answer := func(begin string, then func(net.Conn)) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, begin)
				then(c)
			}
		}
	}
	for stage, serve := range map[string]func(net.Conn){
		"http connected":      silent,
		"https connected":     silent,
		"http no answer":      answer("", silent),
		"http header drips":   answer("HTTP/1.1 200 OK\r\n", func(c net.Conn) { writeSlowly(c, "X: y\r\n") }),
		"http body drips":     answer("HTTP/1.1 200 OK\r\n\r\n", func(c net.Conn) { writeSlowly(c, "0fff") }),
		"http without an end": answer("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", silent),
	} {
		scheme, _, _ := strings.Cut(stage, " ")
		at := listenTCP(t, serve)
		for _, kind := range []string{"git", "http", "oci"} {
			r := repo(scheme + "://" + at + "/x")
			r.Spec.Type = kind
			c := client(func(o *Options) { o.Timeout = 300 * time.Millisecond })
			err := endsSoon(t, func() error { return c.Accessible(t.Context(), r) })
			t.Log(stage, kind, err)
			requireReason(t, TimedOut, err)
		}
	}
}

// A caller that waits for another's read of the same source waits no longer than its context.
func TestWaitingForAnotherReaderEnds(t *testing.T) {
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-answer }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(answer) })
	h := newTestHub(t, Options{Allow: loopback}, time.Hour)
	h.repository("web", "http", server.URL)
	ref := resource.Reference{Type: resource.RefHTTP, Source: "web", Path: "/x"}
	first, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := h.resolver.Resolve(first, ref, time.Time{}); ended <- err }()
	<-asked
	require.Eventually(t, func() bool { return len(h.resolver.lock(recordName(ref))) == 1 }, waitTimeout, time.Millisecond)
	second, cancel := context.WithCancel(t.Context())
	cancel()
	err := endsSoon(t, func() error { _, err := h.resolver.Resolve(second, ref, time.Time{}); return err })
	require.ErrorIs(t, err, context.Canceled)
	stop()
	require.Error(t, <-ended)
}

// packedObject is a pack of objects, of which each says how long it is.
type packedObject struct {
	kind    plumbing.ObjectType
	length  int64
	content []byte
	base    []byte // of a delta: the hash
}

func buildPack(t *testing.T, count int, objects ...packedObject) []byte {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("PACK\x00\x00\x00\x02")
	require.NoError(t, binary.Write(&out, binary.BigEndian, uint32(count)))
	for _, o := range objects {
		first, rest := byte(o.kind)<<4|byte(o.length&15), uint64(o.length)>>4
		if rest > 0 {
			first |= 0x80
		}
		out.WriteByte(first)
		if rest > 0 {
			out.Write(binary.AppendUvarint(nil, rest))
		}
		out.Write(o.base)
		w := zlib.NewWriter(&out)
		_, err := w.Write(o.content)
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
	sum := sha1.Sum(out.Bytes())
	out.Write(sum[:])
	return out.Bytes()
}

// inflatePack counts the blobs that are made of a pack.
func inflatePack(t *testing.T, c *Client, raw []byte) (blobs int, err error) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, packFile), raw, 0o600))
	objects, err := c.inflate(dir)
	if err != nil {
		return 0, err
	}
	defer objects.Close()
	all, err := objects.IterEncodedObjects(plumbing.BlobObject)
	require.NoError(t, err)
	return blobs, all.ForEach(func(plumbing.EncodedObject) error { blobs++; return nil })
}

// A small pack that inflates to very much, at once or by deltas, is refused before it does.
func TestPacksThatGrow(t *testing.T) {
	c := client(func(o *Options) { o.MaxBytes, o.MaxFiles = 100<<10, 10 })
	blob := func(size int) packedObject {
		return packedObject{plumbing.BlobObject, int64(size), make([]byte, size), nil}
	}
	base := plumbing.ComputeHash(plumbing.BlobObject, make([]byte, 1<<10))
	delta := func(source, target uint64, copies int) packedObject {
		text := binary.AppendUvarint(binary.AppendUvarint(nil, source), target)
		text = append(text, bytes.Repeat([]byte{0xb0, 0x00, 0x04}, copies)...) // 1 KiB from the beginning of the base
		return packedObject{plumbing.REFDeltaObject, int64(len(text)), text, base[:]}
	}
	objects, err := inflatePack(t, c, buildPack(t, 3, blob(1<<10), delta(1<<10, 10<<10, 10), delta(1<<10, 20<<10, 20)))
	require.NoError(t, err)
	require.Equal(t, 3, objects)
	objects, err = inflatePack(t, c, buildPack(t, 100, repeatObject(100, blob(4<<10))...))
	require.NoError(t, err)
	require.Equal(t, 1, objects)

	for what, raw := range map[string][]byte{
		"one that is long":              buildPack(t, 1, blob(500<<10)),
		"one that says it is long":      buildPack(t, 1, packedObject{plumbing.BlobObject, 1 << 40, nil, nil}),
		"many that are long together":   buildPack(t, 100, repeatObject(100, blob(5<<10))...),
		"many":                          buildPack(t, 101, repeatObject(101, blob(0))...),
		"a count":                       buildPack(t, 1<<31),
		"a delta":                       buildPack(t, 2, blob(1<<10), delta(1<<10, 500<<10, 500)),
		"a delta that says it is long":  buildPack(t, 2, blob(1<<10), delta(1<<10, 1<<40, 1)),
		"deltas that are long together": buildPack(t, 51, append(repeatObject(50, delta(1<<10, 10<<10, 10)), blob(1<<10))...),
	} {
		require.Less(t, len(raw), 10<<10, what)
		_, err := inflatePack(t, c, raw)
		t.Log(what, err)
		requireReason(t, TooLarge, err)
	}
	for what, raw := range map[string][]byte{
		"nothing": nil, "one that says it is negative": buildPack(t, 1, packedObject{plumbing.BlobObject, -1, nil, nil}), "a header": buildPack(t, 1)[:12], "a longer object than it says": buildPack(t, 1, packedObject{plumbing.BlobObject, 5, make([]byte, 100), nil}),
		"an empty delta":              buildPack(t, 2, blob(1<<10), packedObject{plumbing.REFDeltaObject, 0, nil, base[:]}),
		"a longer delta than it says": buildPack(t, 2, blob(1<<10), delta(1<<10, 1<<10, 10)), "a delta of nothing": buildPack(t, 1, delta(1<<10, 1<<10, 1)),
	} {
		_, err := inflatePack(t, c, raw)
		require.Error(t, err, what)
	}

	git, _ := workingRepository(t)
	git.Write("zeros", strings.Repeat("0", 1<<20), 0o644)
	server := overHTTP(t, git)
	r := repo(server.URL+"/config.git", "username", "ann", "password", "verysecret", "ca.crt", ca(server))
	_, err = filesOf(t, client(func(o *Options) { o.MaxBytes = 200 << 10 }), r, git.Commit(), "etc")
	requireReason(t, TooLarge, err)
	require.ErrorContains(t, err, "more than 819200 bytes when it is inflated")
}

func repeatObject(n int, o packedObject) (all []packedObject) {
	for range n {
		all = append(all, o)
	}
	return all
}

// A tree can name another many times: what is below it is bounded, not only what is stored of it.
func TestTreesThatGrow(t *testing.T) {
	objects := memory.NewStorage()
	put := func(kind plumbing.ObjectType, encode func(plumbing.EncodedObject) error) plumbing.Hash {
		o := objects.NewEncodedObject()
		o.SetType(kind)
		require.NoError(t, encode(o))
		hash, err := objects.SetEncodedObject(o)
		require.NoError(t, err)
		return hash
	}
	tree := func(of plumbing.Hash, mode filemode.FileMode, times int) plumbing.Hash {
		return put(plumbing.TreeObject, func(o plumbing.EncodedObject) error {
			var t object.Tree
			for i := range times {
				t.Entries = append(t.Entries, object.TreeEntry{Name: fmt.Sprintf("%03d", i), Mode: mode, Hash: of})
			}
			return t.Encode(o)
		})
	}
	blob := put(plumbing.BlobObject, func(o plumbing.EncodedObject) error {
		w, err := o.Writer()
		if err == nil {
			_, err = w.Write(make([]byte, 1<<10))
		}
		return err
	})
	read := func(c *Client, hash plumbing.Hash) (files []File, err error) {
		root, err := object.GetTree(objects, hash)
		require.NoError(t, err)
		err = c.filesBelow(t.Context(), root, "", "x", func(f File) error { files = append(files, f); return nil })
		return files, err
	}
	files, err := read(client(), tree(blob, filemode.Regular, 100))
	require.NoError(t, err)
	require.Len(t, files, 100)
	_, err = read(client(func(o *Options) { o.MaxBytes = 99 << 10 }), tree(blob, filemode.Regular, 100))
	requireReason(t, TooLarge, err)
	dirs := tree(blob, filemode.Regular, 0)
	for range 20 {
		dirs = tree(dirs, filemode.Dir, 10)
	}
	err = endsSoon(t, func() error { _, err := read(client(), dirs); return err })
	requireReason(t, TooLarge, err)
}

// No proxy of the environment is asked: it would connect to any address. This reads the environment once in a process, so it is
// another one.
func TestProxiesAreIgnored(t *testing.T) {
	if os.Getenv("EDGEBUS_TEST_PROXY") == "" {
		var asked atomic.Int32
		proxy := listenTCP(t, func(net.Conn) { asked.Add(1) })
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxiesAreIgnored$")
		cmd.Env = append(os.Environ(), "EDGEBUS_TEST_PROXY=1", "HTTP_PROXY=http://"+proxy, "HTTPS_PROXY=http://"+proxy, "ALL_PROXY=socks5://"+proxy, "NO_PROXY=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Zero(t, asked.Load())
		return
	}
	_, key, _ := overSSH(t, t.TempDir())
	c := client(func(o *Options) {
		o.Timeout = 500 * time.Millisecond
		o.OwnAddresses = func() ([]net.Addr, error) { return nil, errors.New("none is reached") }
	})
	for _, kind := range []string{"git", "http", "oci"} {
		for _, scheme := range []string{"http", "https", "ssh"} {
			r := repo(scheme+"://192.0.2.1/x.git", "ssh-privatekey", key)
			r.Spec.Type, r.Spec.InsecureSkipVerify = kind, true
			require.Error(t, c.Accessible(t.Context(), r))
		}
	}
}

// heapPeak is the most that was in memory when it was looked at.
type heapPeak struct{ atomic.Uint64 }

func (p *heapPeak) look() {
	var now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&now)
	for was := p.Load(); now.HeapAlloc > was && !p.CompareAndSwap(was, now.HeapAlloc); was = p.Load() {
	}
}

// However many paths of a commit are read at a time, it is fetched once, and what is in memory is one file and some of the rest.
func TestACommitIsFetchedOnceAndNotHeldInMemory(t *testing.T) {
	git, _ := workingRepository(t)
	const paths, size = 16, 3 << 20
	for i := range paths {
		git.Write(fmt.Sprintf("big/%d", i), strings.Repeat(fmt.Sprint(i%10), size), 0o644)
	}
	commit := git.Commit()
	var fetches atomic.Int32
	handler := git.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			fetches.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	c := client(func(o *Options) { o.Dir = dir })
	var peak heapPeak
	var group sync.WaitGroup
	for i := range paths {
		group.Go(func() {
			err := c.Files(t.Context(), repo(server.URL+"/config.git"), commit, fmt.Sprintf("big/%d", i), func(f File) error {
				peak.look()
				if len(f.Content) != size {
					return fmt.Errorf("%d has %d bytes", i, len(f.Content))
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 1, fetches.Load())
	require.Less(t, peak.Load(), uint64(paths*size/2), "the commit has %d bytes when it is inflated", paths*size)
	_, err := filesOf(t, c, repo(server.URL+"/config.git", "token", "another"), commit, "big/1")
	require.NoError(t, err)
	require.EqualValues(t, 2, fetches.Load(), "whoever has other credentials fetches it himself")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
	sent, err := filepath.Glob(filepath.Join(dir, "*", packFile))
	require.NoError(t, err)
	require.Empty(t, sent, "what was sent is measured and indexed once, and then on disk once")
	newPackCache(dir)
	left, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the next start removes them")
}

// newRegistryServer serves artifacts of one layer each: a title, and random bytes. answer may answer a request for a blob itself.
func newRegistryServer(t *testing.T, sizes map[string]int, answer func(w http.ResponseWriter, r *http.Request, next http.Handler)) (host string) {
	t.Helper()
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:") {
			answer(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	for artifact, size := range sizes {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		layer := mutate.Addendum{Layer: static.NewLayer(content, "text/plain"), Annotations: map[string]string{titleAnnotation: "f"}}
		made, err := mutate.Append(empty.Image, layer)
		require.NoError(t, err)
		ref, err := name.ParseReference(host + "/" + artifact + ":v1")
		require.NoError(t, err)
		require.NoError(t, remote.Write(ref, made))
	}
	return host
}

// Registries that stop at the last byte of many artifacts hold up neither a commit nor another artifact, and what was read of them so far is
// on disk: what is in memory is one file.
func TestSlowRegistriesTakeNoMemoryAndHoldUpNobody(t *testing.T) {
	const slow, size = 16, 3 << 20
	sizes := map[string]int{"quick": size}
	for i := range slow {
		sizes[fmt.Sprintf("slow/%d", i)] = size
	}
	var nearlySent sync.WaitGroup
	nearlySent.Add(slow)
	goOn := make(chan struct{})
	host := newRegistryServer(t, sizes, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.HasPrefix(r.URL.Path, "/v2/slow/") {
			next.ServeHTTP(w, r)
			return
		}
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		content := whole.Body.Bytes()
		_, _ = w.Write(content[:len(content)-1])
		_ = http.NewResponseController(w).Flush()
		last := bytes.Clone(content[len(content)-1:]) // the rest is not held while it waits
		nearlySent.Done()
		<-goOn
		_, _ = w.Write(last)
	})
	dir := t.TempDir()
	c := client(func(o *Options) { o.Dir = dir })
	var peak heapPeak
	r := repo("http://" + host)
	r.Spec.Type = "oci"
	read := func(artifact string) error {
		_, files, err := c.Artifact(t.Context(), r, host+"/"+artifact+":v1", "", func(f File) (resource.InlineFile, error) {
			peak.look()
			return resource.InlineFile{Path: f.Path, Size: int64(len(f.Content))}, nil
		})
		if err == nil && (len(files) != 1 || files[0].Size != size) {
			err = fmt.Errorf("%s has %v", artifact, files)
		}
		return err
	}
	require.NoError(t, read("quick")) // what the registry itself has in memory is no part of it
	atRest := peak.Load()
	peak.Store(0)

	var group sync.WaitGroup
	for i := range slow {
		group.Go(func() {
			if err := read(fmt.Sprintf("slow/%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	nearlySent.Wait()
	require.NoError(t, endsSoon(t, func() error { return read("quick") }))
	git, commits := workingRepository(t)
	server := overHTTP(t, git)
	gitRepo := repo(server.URL+"/config.git", "username", "ann", "password", "verysecret", "ca.crt", ca(server))
	require.NoError(t, endsSoon(t, func() error { _, err := filesOf(t, c, gitRepo, commits[1], "etc"); return err }))
	close(goOn)
	group.Wait()
	require.Less(t, peak.Load(), atRest+slow*size/2, "the artifacts have %d bytes", slow*size)
	left, err := filepath.Glob(filepath.Join(dir, artifactPrefix+"*"))
	require.NoError(t, err)
	require.Empty(t, left, "they are on disk for as long as they are read")
	require.NoError(t, os.Mkdir(filepath.Join(dir, artifactPrefix+"1"), 0o700))
	newPackCache(dir)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "the next start removes what a hub that was killed has left")
}

// No file is kept of an artifact of which any layer is another than its manifest says.
func TestALayerThatIsNotWhatItsDigestSaysIsRefused(t *testing.T) {
	host := newRegistryServer(t, map[string]int{"a": 100}, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		content := whole.Body.Bytes()
		content[len(content)-1]++
		_, _ = w.Write(content)
	})
	r := repo("http://" + host)
	r.Spec.Type = "oci"
	_, _, err := client().Artifact(t.Context(), r, host+"/a:v1", "", func(File) (resource.InlineFile, error) {
		t.Error("a file of it is kept")
		return resource.InlineFile{}, nil
	})
	require.ErrorContains(t, err, "error verifying sha256 checksum")
}
