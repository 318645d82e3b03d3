package sources

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Digest is the digest that the tag of an image has now, as sha256:…. The repository is whose credentials are used; its
// zero value has none.
func (c *Client) Digest(ctx context.Context, r Repo, image string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	ref, err := name.ParseReference(image, c.insecure(r)...)
	if err != nil {
		return "", failed(Invalid, "%s is no reference to an image: %v", image, err)
	}
	if d, ok := ref.(name.Digest); ok {
		return d.DigestStr(), nil
	}
	options, err := c.registry(ctx, r)
	if err != nil {
		return "", explain(ctx, err, image)
	}
	found, err := remote.Head(ref, options...)
	if err != nil {
		return "", ofRegistry(ctx, err, image)
	}
	return found.Digest.String(), nil
}

// pingRegistry asks for the tags of the repository that the address names; if it names none, whether there is a registry that takes
// the credentials.
func (c *Client) pingRegistry(ctx context.Context, r Repo) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	_, place, _ := strings.Cut(r.Spec.URL, "://")
	place = strings.TrimSuffix(place, "/")
	host, below, _ := strings.Cut(place, "/")
	options, err := c.registry(ctx, r)
	if err != nil {
		return explain(ctx, err, place)
	}
	if below != "" {
		repository, err := name.NewRepository(place, c.insecure(r)...)
		if err != nil {
			return failed(Invalid, "%s is no address of a repository: %v", place, err)
		}
		_, err = remote.List(repository, options...)
		var answer *transport.Error
		if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound { // it may be a part of the registry's name space only
			err = nil
		}
		return ofRegistry(ctx, err, place)
	}
	reg, err := name.NewRegistry(host, c.insecure(r)...)
	if err != nil {
		return failed(Invalid, "%s is no address of a registry: %v", place, err)
	}
	hc, auth, err := c.registryAuth(r)
	if err != nil {
		return explain(ctx, err, place)
	}
	signedIn, err := transport.NewWithContext(ctx, reg, auth, hc.Transport, nil)
	if err != nil {
		return ofRegistry(ctx, err, place)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, reg.Scheme()+"://"+reg.RegistryStr()+"/v2/", http.NoBody)
	if err != nil {
		return failed(Invalid, "%s is no address of a registry: %v", place, err)
	}
	res, err := (&http.Client{Transport: signedIn}).Do(req)
	if err != nil {
		return ofRegistry(ctx, err, place)
	}
	defer res.Body.Close()
	return ofRegistry(ctx, transport.CheckError(res, http.StatusOK), place)
}

// The annotations of a layer that is a file, or a directory as an archive.
const (
	titleAnnotation  = "org.opencontainers.image.title"
	unpackAnnotation = "io.deis.oras.content.unpack"
)

// Artifact is the digest that the tag of an artifact or image has now, and the files in it: each layer with a title is a file of that
// name, and any other an archive, of which those in later layers replace those in earlier ones. Of an index for several
// platforms it is the one for linux/amd64. Links are refused, since what they stand for is elsewhere. Nothing is read if the digest is
// known.
func (c *Client) Artifact(ctx context.Context, r Repo, image, known string) (digest string, files []File, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	ref, err := name.ParseReference(image, c.insecure(r)...)
	if err != nil {
		return "", nil, failed(Invalid, "%s is no reference to an artifact: %v", image, err)
	}
	options, err := c.registry(ctx, r)
	if err != nil {
		return "", nil, explain(ctx, err, image)
	}
	found, err := remote.Get(ref, options...)
	if err != nil {
		return "", nil, ofRegistry(ctx, err, image)
	}
	if digest = found.Digest.String(); digest == known {
		return digest, nil, nil
	}
	content, err := found.Image()
	if err != nil {
		return "", nil, ofRegistry(ctx, err, image)
	}
	manifest, err := content.Manifest()
	if err != nil {
		return "", nil, ofRegistry(ctx, err, image)
	}
	a := archive{most: c.o.MaxBytes, mostFiles: c.o.MaxFiles, left: c.o.MaxBytes, files: map[string]File{}}
	for _, part := range manifest.Layers {
		layer, err := content.LayerByDigest(part.Digest)
		if err == nil {
			err = a.layer(part, layer)
		}
		if err != nil {
			return "", nil, ofRegistry(ctx, err, image)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(a.files)) {
		files = append(files, a.files[at])
	}
	return digest, files, nil
}

// archive collects the files of layers.
type archive struct {
	files      map[string]File
	left, most int64 // bytes
	mostFiles  int
}

func (a *archive) layer(part v1.Descriptor, layer v1.Layer) error {
	title := part.Annotations[titleAnnotation]
	whole := title != "" && part.Annotations[unpackAnnotation] != "true"
	open := layer.Uncompressed
	if whole {
		open = layer.Compressed // as it is, whatever it is
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	if whole {
		return a.add(title, 0o644, r)
	}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := a.entry(h, in); err != nil {
			return err
		}
	}
}

// whiteout begins the names of files that take others away that earlier layers have.
const whiteout = ".wh."

func (a *archive) entry(h *tar.Header, in io.Reader) error {
	at := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	dir, base := path.Split(at)
	if gone, ok := strings.CutPrefix(base, whiteout); ok {
		if gone == whiteout+".opq" {
			gone = ""
		}
		maps.DeleteFunc(a.files, func(file string, _ File) bool {
			return file == dir+gone || strings.HasPrefix(file, strings.TrimSuffix(dir+gone, "/")+"/")
		})
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg:
		return a.add(at, uint32(h.Mode)&0o777, in)
	}
	return failed(Invalid, "%s is a link or a device, and only files are taken", at)
}

func (a *archive) add(at string, mode uint32, r io.Reader) error {
	if !filepath.IsLocal(at) || path.Clean(at) != at || at == "." {
		return failed(Invalid, "%.200q is no name of a file", at)
	}
	if len(a.files) == a.mostFiles {
		return failed(TooLarge, "it has more than %d files", a.mostFiles)
	}
	data, err := io.ReadAll(io.LimitReader(r, a.left+1))
	if err != nil {
		return err
	}
	if a.left -= int64(len(data)); a.left < 0 {
		return failed(TooLarge, "its files have more than %d bytes", a.most)
	}
	a.files[at] = File{at, mode, data}
	return nil
}

func (c *Client) insecure(r Repo) []name.Option {
	if strings.HasPrefix(r.Spec.URL, "http://") {
		return []name.Option{name.Insecure}
	}
	return nil
}

func (c *Client) registry(ctx context.Context, r Repo) ([]remote.Option, error) {
	hc, auth, err := c.registryAuth(r)
	if err != nil {
		return nil, err
	}
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(hc.Transport), remote.WithAuth(auth), once}, nil
}

func (c *Client) registryAuth(r Repo) (*http.Client, authn.Authenticator, error) {
	hc, err := c.http(r)
	switch {
	case len(r.Secret["username"]) > 0:
		return hc, &authn.Basic{Username: string(r.Secret["username"]), Password: string(r.Secret["password"])}, err
	case len(r.Secret["token"]) > 0:
		return hc, &authn.Bearer{Token: string(r.Secret["token"])}, err
	}
	return hc, authn.Anonymous, err
}

// once has the caller try again, who does that for all sources.
var once = remote.WithRetryBackoff(remote.Backoff{Steps: 1})

// ofRegistry gives an error of a registry its reason.
func ofRegistry(ctx context.Context, err error, what string) error {
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode != 0 {
		return failed(ofStatus(answer.StatusCode), "%s: the registry answers %d", what, answer.StatusCode)
	}
	return explain(ctx, err, what)
}
