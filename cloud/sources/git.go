package sources

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage/memory"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

var commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Commit is the commit that a branch or tag of a git repository is at now. A commit is itself.
func (c *Client) Commit(ctx context.Context, r Repo, revision string) (string, error) {
	if commitForm.MatchString(revision) {
		return revision, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
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
	return "", failed(NotFound, "%s has no branch or tag %s", redacted(r.Spec.URL), revision)
}

// Files reads a file, or a directory with all below it, of a commit. Symbolic links and submodules are refused, since
// what they stand for is elsewhere.
func (c *Client) Files(ctx context.Context, r Repo, commit, dir string) ([]File, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	what := redacted(r.Spec.URL) + " at " + commit
	session, done, err := c.gitSession(ctx, r)
	if err != nil {
		return nil, err
	}
	defer done()
	refs, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, ofGit(err, what)
	}
	req := packp.NewUploadPackRequestFromCapabilities(refs.Capabilities)
	req.Capabilities.Delete(capability.Sideband) // progress for people, which would have to be taken out again
	req.Capabilities.Delete(capability.Sideband64k)
	req.Wants = []plumbing.Hash{plumbing.NewHash(commit)}
	if refs.Capabilities.Supports(capability.Shallow) {
		if err := req.Capabilities.Set(capability.Shallow); err != nil {
			return nil, explain(err, what)
		}
		req.Depth = packp.DepthCommits(1)
	}
	pack, err := session.UploadPack(ctx, req)
	if err != nil {
		return nil, ofGit(err, what)
	}
	defer pack.Close()
	objects := memory.NewStorage()
	if err := packfile.UpdateObjectStorage(objects, &limitedBody{io.NopCloser(pack), c.o.MaxBytes, c.o.MaxBytes}); err != nil {
		return nil, ofGit(err, what)
	}
	found, err := object.GetCommit(objects, plumbing.NewHash(commit))
	if err != nil {
		return nil, ofGit(err, what)
	}
	tree, err := found.Tree()
	if err != nil {
		return nil, ofGit(err, what)
	}
	return c.filesBelow(tree, strings.Trim(path.Clean("/"+dir), "/"), what)
}

func (c *Client) filesBelow(tree *object.Tree, dir, what string) ([]File, error) {
	if dir != "" {
		entry, err := tree.FindEntry(dir)
		if err != nil {
			return nil, failed(NotFound, "%s has no %s", what, dir)
		}
		if entry.Mode != filemode.Dir {
			f, err := readEntry(tree, dir, ".", *entry, what)
			return []File{f}, err
		}
		if tree, err = tree.Tree(dir); err != nil {
			return nil, explain(err, what)
		}
	}
	walker := object.NewTreeWalker(tree, true, nil)
	defer walker.Close()
	var files []File
	for {
		name, entry, err := walker.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, explain(err, what)
		}
		if entry.Mode == filemode.Dir {
			continue
		}
		if len(files) == c.o.MaxFiles {
			return nil, failed(TooLarge, "%s has more than %d files below %s", what, c.o.MaxFiles, dir)
		}
		f, err := readEntry(tree, name, name, entry, what)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
}

func readEntry(tree *object.Tree, at, name string, entry object.TreeEntry, what string) (File, error) {
	mode := uint32(0o644)
	switch entry.Mode {
	case filemode.Executable:
		mode = 0o755
	case filemode.Regular, filemode.Deprecated:
	default:
		return File{}, failed(Invalid, "%s: %s is a symbolic link or a submodule, and only files are taken", what, at)
	}
	f, err := tree.TreeEntryFile(&entry)
	if err != nil {
		return File{}, explain(err, what)
	}
	r, err := f.Reader()
	if err != nil {
		return File{}, explain(err, what)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	return File{name, mode, content}, explain(err, what)
}

func (c *Client) gitRefs(ctx context.Context, r Repo) (*packp.AdvRefs, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	session, done, err := c.gitSession(ctx, r)
	if err != nil {
		return nil, err
	}
	defer done()
	refs, err := session.AdvertisedReferencesContext(ctx)
	return refs, ofGit(err, redacted(r.Spec.URL))
}

// gitSession prepares to speak with a repository. done has to be called.
func (c *Client) gitSession(ctx context.Context, r Repo) (session transport.UploadPackSession, done func(), err error) {
	what := redacted(r.Spec.URL)
	at, err := transport.NewEndpoint(r.Spec.URL)
	if err != nil {
		return nil, nil, failed(Invalid, "%s is no address of a git repository", what)
	}
	var via transport.Transport
	var auth transport.AuthMethod
	switch at.Protocol {
	case "https", "http":
		hc, err := c.http(r)
		if err != nil {
			return nil, nil, explain(err, what)
		}
		via, auth = githttp.NewClient(hc), httpAuth(r)
	case "ssh":
		if via, auth, err = c.ssh(ctx, r, at); err != nil {
			return nil, nil, explain(err, what)
		}
	default:
		return nil, nil, failed(Invalid, "%s: git is read over https, http and ssh", what)
	}
	session, err = via.NewUploadPackSession(at, auth)
	if err != nil {
		return nil, nil, ofGit(err, what)
	}
	return session, func() { _ = session.Close() }, nil // all that it says is that the other side closed first
}

func httpAuth(r Repo) transport.AuthMethod {
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

// ssh resolves the host itself, so that the address which was found to be allowed is the one that is connected to.
func (c *Client) ssh(ctx context.Context, r Repo, at *transport.Endpoint) (transport.Transport, transport.AuthMethod, error) {
	parse := ssh.ParsePrivateKey
	if passphrase := r.Secret["ssh-passphrase"]; len(passphrase) > 0 {
		parse = func(key []byte) (ssh.Signer, error) { return ssh.ParsePrivateKeyWithPassphrase(key, passphrase) }
	}
	signer, err := parse(r.Secret["ssh-privatekey"])
	if err != nil {
		return nil, nil, failed(Invalid, "ssh-privatekey of its Secret can't be read (ssh-passphrase is its passphrase): %v", err)
	}
	check := ssh.InsecureIgnoreHostKey() //nolint:gosec // replaced, unless the user asks for it by name
	if !r.Spec.InsecureSkipVerify {
		if check, err = hostKeys(r.Secret["known_hosts"]); err != nil {
			return nil, nil, err
		}
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", at.Host)
	if err != nil {
		return nil, nil, err
	}
	name := at.Host
	port := at.Port
	if port == 0 {
		port = gitssh.DefaultPort
	}
	var why error
	for _, a := range addrs {
		if why = c.allowed(a); why == nil {
			at.Host = a.Unmap().String()
			break
		}
	}
	if why != nil {
		return nil, nil, why
	}
	user := at.User
	if user == "" {
		user = "git"
	}
	auth := &gitssh.PublicKeys{User: user, Signer: signer}
	auth.HostKeyCallback = func(_ string, remote net.Addr, key ssh.PublicKey) error {
		if err := check(knownhosts.Normalize(net.JoinHostPort(name, strconv.Itoa(port))), remote, key); err != nil {
			return failed(Untrusted, "its host key is not in known_hosts of its Secret: %s %s", key.Type(), ssh.FingerprintSHA256(key))
		}
		return nil
	}
	config, err := auth.ClientConfig()
	if err != nil {
		return nil, nil, err
	}
	config.Timeout = c.o.Timeout
	return gitssh.NewClient(config), auth, nil
}

// hostKeys reads known_hosts, for which the library wants a file.
func hostKeys(text []byte) (ssh.HostKeyCallback, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, failed(Untrusted, "its Secret has no known_hosts: ssh-keyscan prints the lines that belong there")
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
		return nil, failed(Invalid, "known_hosts of its Secret can't be read")
	}
	return check, nil
}

// ofGit gives an error of git its reason.
func ofGit(err error, what string) error {
	switch {
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed):
		return failed(Unauthorized, "%s: the server wants other credentials", what)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return failed(NotFound, "%s: there is no such repository", what)
	case errors.Is(err, transport.ErrEmptyRemoteRepository), errors.Is(err, plumbing.ErrObjectNotFound):
		return failed(NotFound, "%s: %v", what, err)
	case err != nil && strings.Contains(err.Error(), "unable to authenticate"):
		return failed(Unauthorized, "%s: the server takes none of the keys", what)
	}
	return explain(err, what)
}
