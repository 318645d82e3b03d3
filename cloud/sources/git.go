// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Commit is the commit that a branch or tag of a git repository is at now. A commit is itself.
func (c *Client) Commit(ctx context.Context, r RepositoryAccess, revision string) (string, error) {
	if commitPattern.MatchString(revision) {
		return revision, nil
	}
	refs, err := c.gitRefs(ctx, r)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"refs/tags/" + revision, "refs/heads/" + revision, revision} {
		if hash, ok := refs.Peeled[name]; ok { // what an annotated tag is of
			return hash.String(), nil
		}
		if hash, ok := refs.References[name]; ok {
			return hash.String(), nil
		}
	}
	if revision == "HEAD" && refs.Head != nil {
		return refs.Head.String(), nil
	}
	return "", errorf(NotFound, "%s has no branch or tag %s", redactURL(r.Spec.URL), revision)
}

// Files reads a file, or a directory with all below it, of a commit, and gives each file to use. Symbolic links and submodules are
// refused, since what they stand for is elsewhere.
func (c *Client) Files(ctx context.Context, r RepositoryAccess, commit, dir string, use func(File) error) error {
	what := redactURL(r.Spec.URL) + " at " + commit
	pack, err := c.packs.get(ctx, packKey(r, commit), func(file string) error {
		ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
		return gitError(ctx, c.fetchPack(ctx, r, commit, file), what)
	})
	if err != nil {
		return err
	}
	defer c.packs.release(pack)
	release, err := c.unpack(ctx, what)
	if err != nil {
		return err
	}
	defer release()
	objects, err := c.inflate(pack.dir)
	if err != nil {
		return gitError(ctx, err, what)
	}
	defer objects.Close()
	found, err := object.GetCommit(objects, plumbing.NewHash(commit))
	if err != nil {
		return gitError(ctx, err, what)
	}
	tree, err := found.Tree()
	if err != nil {
		return gitError(ctx, err, what)
	}
	return c.filesBelow(ctx, tree, strings.Trim(path.Clean("/"+dir), "/"), what, use)
}

// fetchPack writes a commit to a file as the server sends it: with all of its files, and without the commits before it if the server can
// do that.
func (c *Client) fetchPack(ctx context.Context, r RepositoryAccess, commit, file string) error {
	session, err := c.gitSession(ctx, r)
	if err != nil {
		return err
	}
	defer session.Close()
	refs, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return err
	}
	req := packp.NewUploadPackRequestFromCapabilities(refs.Capabilities)
	req.Capabilities.Delete(capability.Sideband) // progress for people, which would have to be taken out again
	req.Capabilities.Delete(capability.Sideband64k)
	req.Wants = []plumbing.Hash{plumbing.NewHash(commit)}
	if refs.Capabilities.Supports(capability.Shallow) {
		if err := req.Capabilities.Set(capability.Shallow); err != nil {
			return err
		}
		req.Depth = packp.DepthCommits(1)
	}
	pack, err := session.UploadPack(ctx, req)
	if err != nil {
		return err
	}
	defer pack.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, &limitedBody{io.NopCloser(pack), c.o.MaxBytes, c.o.MaxBytes})
	return errors.Join(err, f.Close(), ctx.Err()) // a connection that was closed since the time is over looks like an end
}

// inflate has the objects of the pack in a directory be read from there: one that is wanted is inflated when it is read.
func (c *Client) inflate(dir string) (*filesystem.Storage, error) {
	objects := filesystem.NewStorageWithOptions(osfs.New(filepath.Join(dir, "objects")), cache.NewObjectLRU(cachedObjects), filesystem.Options{LargeObjectThreshold: int64(cachedObjects)})
	if indexed, err := objects.ObjectStorage.ObjectPacks(); err != nil || len(indexed) > 0 {
		return objects, err // another path of the commit was read before
	}
	pack, err := os.Open(filepath.Join(dir, packFile))
	if err != nil {
		return nil, err
	}
	defer pack.Close()
	if err := c.measure(pack); err != nil {
		return nil, err
	}
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if err := packfile.UpdateObjectStorage(objects, pack); err != nil {
		return nil, err
	}
	return objects, os.Remove(pack.Name()) // the storage has a copy
}

// measure fails for a small pack that inflates to very much. What all of its objects, and those that its deltas make of others, come to is
// counted by what the pack says of each: the library refuses an object that is longer.
func (c *Client) measure(pack io.Reader) error {
	most, left := inflationFactor*c.o.MaxBytes, inflationFactor*c.o.MaxBytes
	take := func(size uint64) error {
		if size > uint64(left) {
			return errorf(TooLarge, "the commit has more than %d bytes when it is inflated", most)
		}
		left -= int64(size)
		return nil
	}
	in := packfile.NewScanner(pack)
	_, count, err := in.Header()
	if err != nil {
		return err
	}
	if mostObjects := objectsPerFile * c.o.MaxFiles; int64(count) > int64(mostObjects) {
		return errorf(TooLarge, "the commit has more than %d objects", mostObjects)
	}
	for range count {
		h, err := in.NextObjectHeader()
		if err != nil {
			return err
		}
		if err := take(uint64(h.Length)); err != nil {
			return err
		}
		var begin prefixBuffer
		if _, _, err := in.NextObject(&begin); err != nil {
			return err
		}
		if h.Type.IsDelta() { // begins with the size of what it is applied to, and of what that gives
			_, n := binary.Uvarint(begin)
			target, m := binary.Uvarint(begin[max(n, 0):])
			if n <= 0 || m <= 0 {
				return packfile.ErrInvalidDelta
			}
			if err := take(target); err != nil {
				return err
			}
		}
	}
	return nil
}

// cachedObjects is how much of a commit is in memory, besides the object that is being read.
const cachedObjects = 1 * cache.MiByte

// The bounds of a pack, whose commit may have much more in it than the files that are wanted, and of the layers of an artifact.
const (
	inflationFactor = 4  // times MaxBytes: the bytes of all objects, or layers, when they are inflated
	objectsPerFile  = 10 // times MaxFiles: the objects
)

// prefixBuffer keeps the first bytes that are written to it.
type prefixBuffer []byte

func (b *prefixBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), 1<<10-len(*b))]...)
	return len(p), nil
}

// filesBelow reads the files of a directory. A tree can name a file or another tree any number of times, so all are counted.
func (c *Client) filesBelow(ctx context.Context, tree *object.Tree, dir, what string, use func(File) error) error {
	left := c.o.MaxBytes
	if dir != "" {
		entry, err := tree.FindEntry(dir)
		if err != nil {
			return errorf(NotFound, "%s has no %s", what, dir)
		}
		if entry.Mode != filemode.Dir {
			f, err := c.readEntry(ctx, tree, dir, ".", *entry, what, &left)
			if err == nil {
				err = use(f)
			}
			return err
		}
		if tree, err = tree.Tree(dir); err != nil {
			return explainError(ctx, err, what)
		}
	}
	walker := object.NewTreeWalker(tree, true, nil)
	defer walker.Close()
	files := 0
	for entries := 0; ; entries++ {
		name, entry, err := walker.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return gitError(ctx, err, what)
		}
		if files == c.o.MaxFiles && entry.Mode != filemode.Dir || entries == objectsPerFile*c.o.MaxFiles {
			return errorf(TooLarge, "%s has more than %d files below %s", what, c.o.MaxFiles, dir)
		}
		if entry.Mode == filemode.Dir {
			continue
		}
		f, err := c.readEntry(ctx, tree, name, name, entry, what, &left)
		if err != nil {
			return err
		}
		if err := use(f); err != nil {
			return err
		}
		files++
	}
}

func (c *Client) readEntry(ctx context.Context, tree *object.Tree, at, name string, entry object.TreeEntry, what string, left *int64) (File, error) {
	mode := uint32(0o644)
	switch entry.Mode {
	case filemode.Executable:
		mode = 0o755
	case filemode.Regular, filemode.Deprecated:
	default:
		return File{}, errorf(Invalid, "%s: %s is a symbolic link or a submodule, and only files are taken", what, at)
	}
	f, err := tree.TreeEntryFile(&entry)
	if err != nil {
		return File{}, explainError(ctx, err, what)
	}
	if *left -= f.Size; *left < 0 {
		return File{}, errorf(TooLarge, "%s: its files have more than %d bytes", what, c.o.MaxBytes)
	}
	r, err := f.Reader()
	if err != nil {
		return File{}, explainError(ctx, err, what)
	}
	defer r.Close()
	content := make([]byte, f.Size)
	_, err = io.ReadFull(r, content)
	return File{name, mode, content}, explainError(ctx, err, what)
}

func (c *Client) gitRefs(ctx context.Context, r RepositoryAccess) (*packp.AdvRefs, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	what := redactURL(r.Spec.URL)
	session, err := c.gitSession(ctx, r)
	if err != nil {
		return nil, gitError(ctx, err, what)
	}
	defer session.Close()
	refs, err := session.AdvertisedReferencesContext(ctx)
	return refs, gitError(ctx, err, what)
}

// gitSession is a conversation with the git-upload-pack of a repository. It ends with the context, whatever the server does.
type gitSession interface {
	AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error)
	UploadPack(ctx context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	Close() error
}

func (c *Client) gitSession(ctx context.Context, r RepositoryAccess) (gitSession, error) {
	at, err := transport.NewEndpoint(r.Spec.URL)
	if err != nil {
		return nil, errorf(Invalid, "it is no address of a git repository")
	}
	switch at.Protocol {
	case "https", "http":
		hc, err := c.http(r)
		if err != nil {
			return nil, err
		}
		return githttp.NewClient(hc).NewUploadPackSession(at, httpAuth(r))
	case "ssh":
		return c.ssh(ctx, r, at)
	}
	return nil, errorf(Invalid, "git is read over https, http and ssh")
}

func httpAuth(r RepositoryAccess) transport.AuthMethod {
	user, password := string(r.Secret["username"]), string(r.Secret["password"])
	if token := r.Secret["token"]; len(token) > 0 {
		password = string(token)
		if user == "" {
			user = "git" // any name will do beside a token
		}
	}
	if user == "" && password == "" {
		return nil
	}
	return &githttp.BasicAuth{Username: user, Password: password}
}

// sshSession is git-upload-pack at the other end of an SSH connection. The library's own has no time-out once it is connected, and
// obeys the ssh_config and the proxy of whoever runs the hub, so that the address that is connected to is not known.
type sshSession struct {
	*ssh.Session
	client *ssh.Client
	stop   func() bool // closing the connection with the context
	in     io.WriteCloser
	out    io.Reader
	stderr prefixBuffer // what it says is wrong
}

func (c *Client) ssh(ctx context.Context, r RepositoryAccess, at *transport.Endpoint) (gitSession, error) {
	address := net.JoinHostPort(at.Host, strconv.Itoa(cmp.Or(max(at.Port, 0), 22)))
	config, err := sshConfig(r, address)
	if err != nil {
		return nil, err
	}
	config.User = cmp.Or(at.User, "git")
	conn, err := c.dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &sshSession{stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	known, check := false, config.HostKeyCallback
	config.HostKeyCallback = func(host string, remote net.Addr, key ssh.PublicKey) error {
		err := check(host, remote, key)
		known = err == nil
		return err
	}
	over, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		s.stop()
		// The library has no type for it: once the server is known, what fails is the authentication, or the network.
		if broken := net.Error(nil); known && !errors.As(err, &broken) && !errors.Is(err, io.EOF) {
			return nil, errorf(Unauthorized, "the server takes none of the keys")
		}
		return nil, err
	}
	s.client = ssh.NewClient(over, channels, requests)
	if err := s.start("git-upload-pack '"+strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(at.Path)+"'", c.o.MaxBytes); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// sshConfig is who the hub is, and by which key the server at an address is known.
func sshConfig(r RepositoryAccess, address string) (*ssh.ClientConfig, error) {
	parse := ssh.ParsePrivateKey
	if passphrase := r.Secret["ssh-passphrase"]; len(passphrase) > 0 {
		parse = func(key []byte) (ssh.Signer, error) { return ssh.ParsePrivateKeyWithPassphrase(key, passphrase) }
	}
	signer, err := parse(r.Secret["ssh-privatekey"])
	if err != nil {
		return nil, errorf(Invalid, "ssh-privatekey of its Secret can't be read (ssh-passphrase is its passphrase): %v", err)
	}
	config := &ssh.ClientConfig{Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}}
	if r.Spec.InsecureSkipVerify {
		config.HostKeyCallback = ssh.InsecureIgnoreHostKey() //nolint:gosec // the user asks for it by name
		return config, nil
	}
	check, err := parseKnownHosts(r.Secret["known_hosts"])
	if err != nil {
		return nil, err
	}
	nobodys, err := ssh.NewPublicKey(make(ed25519.PublicKey, ed25519.PublicKeySize))
	if err != nil {
		return nil, err
	}
	config.HostKeyAlgorithms = hostKeyAlgorithms(check(address, &net.TCPAddr{}, nobodys), r.Secret["known_hosts"])
	config.HostKeyCallback = func(_ string, remote net.Addr, key ssh.PublicKey) error {
		if err := check(address, remote, key); err != nil {
			return errorf(Untrusted, "its host key is not in known_hosts of its Secret: %s %s", key.Type(), ssh.FingerprintSHA256(key))
		}
		return nil
	}
	return config, nil
}

// hostKeyAlgorithms lists the algorithms of host keys in the order in which the client prefers them: a server has keys of several types and
// shows one, and known_hosts may have that of one type only. known is what the check of nobody's key said, which has those of the server. If
// known_hosts has authorities, certificates come first. A host of which no key is known has the library's order.
func hostKeyAlgorithms(known error, text []byte) []string {
	var unknown *knownhosts.KeyError
	if !errors.As(known, &unknown) || len(unknown.Want) == 0 {
		return nil
	}
	certified := bytes.Contains(text, []byte("@cert-authority"))
	isKnown := func(algorithm string) bool {
		keyType := algorithm
		if algorithm == ssh.KeyAlgoRSASHA256 || algorithm == ssh.KeyAlgoRSASHA512 {
			keyType = ssh.KeyAlgoRSA
		}
		return certified && strings.Contains(algorithm, "-cert-") || slices.ContainsFunc(unknown.Want, func(k knownhosts.KnownKey) bool { return k.Key.Type() == keyType })
	}
	var first, rest []string
	for _, algorithm := range slices.Concat(ssh.SupportedAlgorithms().HostKeys, ssh.InsecureAlgorithms().HostKeys) {
		if isKnown(algorithm) {
			first = append(first, algorithm)
		} else {
			rest = append(rest, algorithm)
		}
	}
	return append(first, rest...)
}

func (s *sshSession) start(command string, maxBytes int64) (err error) {
	if s.Session, err = s.client.NewSession(); err != nil {
		return err
	}
	if s.in, err = s.StdinPipe(); err != nil {
		return err
	}
	if s.out, err = s.StdoutPipe(); err != nil {
		return err
	}
	s.out = &limitedBody{io.NopCloser(s.out), maxBytes, maxBytes}
	s.Stderr = &s.stderr
	return s.Start(command)
}

// AdvertisedReferencesContext reads the branches and tags, with which the server begins.
func (s *sshSession) AdvertisedReferencesContext(context.Context) (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	err := refs.Decode(s.out)
	var refused *pktline.ErrorLine
	switch {
	case errors.As(err, &refused):
		return nil, serverError(refused.Text)
	case errors.Is(err, packp.ErrEmptyInput):
		_ = s.Wait() // all that it says is that the server has failed
		return nil, serverError(string(s.stderr))
	case errors.Is(err, packp.ErrEmptyAdvRefs), err == nil && refs.IsEmpty():
		return nil, transport.ErrEmptyRemoteRepository
	}
	transport.FilterUnsupportedCapabilities(refs.Capabilities)
	return refs, err
}

// serverError is why a server sends nothing, in its own words.
func serverError(text string) error {
	for _, missing := range []string{"not found", "not exist", "not appear to be a git repository", "no such repository", "could not be found", "access denied"} {
		if strings.Contains(strings.ToLower(text), missing) {
			return transport.ErrRepositoryNotFound
		}
	}
	return errorf(Unavailable, "the server sends no branches and tags: %.200q", text)
}

// UploadPack asks for commits, and reads until the pack begins.
func (s *sshSession) UploadPack(_ context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	err := req.UploadRequest.Encode(s.in)
	if err == nil {
		err = req.UploadHaves.Encode(s.in, true)
	}
	if err == nil {
		err = pktline.NewEncoder(s.in).Encodef("done\n")
	}
	if err == nil {
		err = s.in.Close()
	}
	if err != nil {
		return nil, err
	}
	res := packp.NewUploadPackResponse(req)
	return res, res.Decode(io.NopCloser(s.out))
}

// Close closes the connection.
func (s *sshSession) Close() error {
	s.stop()
	return s.client.Close()
}

// parseKnownHosts reads known_hosts, for which the library wants a file.
func parseKnownHosts(text []byte) (ssh.HostKeyCallback, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errorf(Untrusted, "its Secret has no known_hosts: ssh-keyscan prints the lines that belong there")
	}
	f, err := os.CreateTemp("", "known_hosts")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	check, err := knownhosts.New(f.Name())
	if err != nil {
		return nil, errorf(Invalid, "known_hosts of its Secret can't be read")
	}
	return check, nil
}

// gitError gives an error of git its reason.
func gitError(ctx context.Context, err error, what string) error {
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed):
		return errorf(Unauthorized, "%s: the server wants other credentials", what)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return errorf(NotFound, "%s: there is no such repository", what)
	case errors.Is(err, transport.ErrEmptyRemoteRepository), errors.Is(err, plumbing.ErrObjectNotFound):
		return errorf(NotFound, "%s: %v", what, err)
	}
	return explainError(ctx, err, what)
}
