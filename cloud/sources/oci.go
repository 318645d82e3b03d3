// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/klauspost/compress/zstd"

	"github.com/edgebus/edgebus/topics/resource"
)

// Digest is the digest that the tag of an image has now, as sha256:…. The repository is whose credentials are used; its
// zero value has none.
func (c *Client) Digest(ctx context.Context, r RepositoryAccess, image string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	ref, err := name.ParseReference(image, c.insecure(r)...)
	if err != nil {
		return "", errorf(Invalid, "%s is no reference to an image: %v", image, err)
	}
	if d, ok := ref.(name.Digest); ok {
		return d.DigestStr(), nil
	}
	options, err := c.registry(ctx, r)
	if err != nil {
		return "", explainError(ctx, err, image)
	}
	found, err := remote.Head(ref, options...)
	if err != nil {
		return "", registryError(ctx, err, image)
	}
	return found.Digest.String(), nil
}

// pingRegistry asks for the tags of the repository that the address names; if it names none, whether there is a registry that takes
// the credentials.
func (c *Client) pingRegistry(ctx context.Context, r RepositoryAccess) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	_, place, _ := strings.Cut(r.Spec.URL, "://")
	place = strings.TrimSuffix(place, "/")
	host, below, _ := strings.Cut(place, "/")
	options, err := c.registry(ctx, r)
	if err != nil {
		return explainError(ctx, err, place)
	}
	if below != "" {
		repository, err := name.NewRepository(place, c.insecure(r)...)
		if err != nil {
			return errorf(Invalid, "%s is no address of a repository: %v", place, err)
		}
		_, err = remote.List(repository, options...)
		var answer *transport.Error
		if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound { // it may be a part of the registry's name space only
			err = nil
		}
		return registryError(ctx, err, place)
	}
	reg, err := name.NewRegistry(host, c.insecure(r)...)
	if err != nil {
		return errorf(Invalid, "%s is no address of a registry: %v", place, err)
	}
	hc, auth, err := c.registryAuth(r)
	if err != nil {
		return explainError(ctx, err, place)
	}
	signedIn, err := transport.NewWithContext(ctx, reg, auth, hc.Transport, nil)
	if err != nil {
		return registryError(ctx, err, place)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, reg.Scheme()+"://"+reg.RegistryStr()+"/v2/", http.NoBody)
	if err != nil {
		return errorf(Invalid, "%s is no address of a registry: %v", place, err)
	}
	res, err := (&http.Client{Transport: signedIn}).Do(req)
	if err != nil {
		return registryError(ctx, err, place)
	}
	defer res.Body.Close()
	return registryError(ctx, transport.CheckError(res, http.StatusOK), place)
}

// The annotations of a layer that is a file, or a directory as an archive.
const (
	titleAnnotation  = "org.opencontainers.image.title"
	unpackAnnotation = "io.deis.oras.content.unpack"
)

// Artifact is the digest that the tag of an artifact or image has now, and the files in it as keep returns them: each layer with a title is
// a file of that name, and any other an archive, of which those in later layers replace those in earlier ones. Of an index for several
// platforms it is the one for linux/amd64. Links are refused, since what they stand for is elsewhere. Nothing is read if the digest is
// known. All layers are on disk, with the digests that they should have, before the first is unpacked.
func (c *Client) Artifact(ctx context.Context, r RepositoryAccess, image, known string, keep func(File) (resource.InlineFile, error)) (digest string, files []resource.InlineFile, err error) {
	fetching, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	digest, content, err := c.artifact(fetching, r, image)
	if err != nil || digest == known {
		return digest, nil, registryError(fetching, err, image)
	}
	dir, err := c.packs.makeDir(artifactPrefix)
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir) // the next start does it otherwise
	layers, err := c.fetchLayers(content, dir)
	if err != nil {
		return "", nil, registryError(fetching, err, image)
	}
	release, err := c.unpack(ctx, image)
	if err != nil {
		return "", nil, err
	}
	defer release()
	a := layerFiles{
		most: c.o.MaxBytes, left: c.o.MaxBytes, mostFiles: c.o.MaxFiles, keep: keep, files: map[string]resource.InlineFile{},
		inflated: &byteLimit{left: inflationFactor * c.o.MaxBytes, most: inflationFactor * c.o.MaxBytes, what: "its layers, when they are inflated,"},
	}
	for i, layer := range layers {
		if err := a.layer(layer, layerFile(dir, i)); err != nil {
			return "", nil, explainError(ctx, err, image)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(a.files)) {
		files = append(files, a.files[at])
	}
	return digest, files, nil
}

// artifact finds an artifact, of which nothing but the manifest is read.
func (c *Client) artifact(ctx context.Context, r RepositoryAccess, image string) (digest string, content v1.Image, err error) {
	ref, err := name.ParseReference(image, c.insecure(r)...)
	if err != nil {
		return "", nil, errorf(Invalid, "it is no reference to an artifact: %v", err)
	}
	options, err := c.registry(ctx, r)
	if err != nil {
		return "", nil, err
	}
	found, err := remote.Get(ref, options...)
	if err != nil {
		return "", nil, err
	}
	content, err = found.Image()
	return found.Digest.String(), content, err
}

func layerFile(dir string, i int) string { return filepath.Join(dir, strconv.Itoa(i)) }

// fetchLayers writes the layers of an artifact to files as the registry sends them.
func (c *Client) fetchLayers(content v1.Image, dir string) ([]v1.Descriptor, error) {
	manifest, err := content.Manifest()
	if err != nil {
		return nil, err
	}
	limit := &byteLimit{left: c.o.MaxBytes, most: c.o.MaxBytes, what: "its layers"}
	for i, part := range manifest.Layers {
		layer, err := content.LayerByDigest(part.Digest)
		if err != nil {
			return nil, err
		}
		sent, err := layer.Compressed()
		if err != nil {
			return nil, err
		}
		err = writeFile(layerFile(dir, i), limit.of(sent)) // to its end, where the digest is compared
		if err = errors.Join(err, sent.Close()); err != nil {
			return nil, err
		}
	}
	return manifest.Layers, nil
}

func writeFile(name string, in io.Reader) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}

// layerFiles collects the files of layers.
type layerFiles struct {
	keep       func(File) (resource.InlineFile, error)
	files      map[string]resource.InlineFile
	left, most int64 // bytes of the files, and of their names
	mostFiles  int
	inflated   *byteLimit
}

func (a *layerFiles) layer(part v1.Descriptor, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if title := part.Annotations[titleAnnotation]; title != "" && part.Annotations[unpackAnnotation] != "true" {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return a.add(title, 0o644, info.Size(), f) // as it is, whatever it is
	}
	r, err := decompressLayer(f)
	if err != nil {
		return err
	}
	defer r.Close()
	for in := tar.NewReader(a.inflated.of(r)); ; {
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

// maxZstdWindow is what a decoder of Zstandard has to have in memory, by RFC 8878. A layer may ask for very much more.
const maxZstdWindow = 8 << 20

// decompressLayer reads a file that may be compressed.
func decompressLayer(f io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReader(f)
	begin, _ := in.Peek(4) // fewer are no compressed file
	switch {
	case bytes.HasPrefix(begin, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.Equal(begin, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, err
		}
		return r.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// byteLimit ends reads that take more bytes together than they may.
type byteLimit struct {
	left, most int64
	what       string
}

func (l *byteLimit) of(r io.Reader) io.Reader { return &limitedReader{l, r} }

type limitedReader struct {
	limit *byteLimit
	io.Reader
}

func (r *limitedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.limit.left -= int64(n); r.limit.left < 0 {
		return 0, errorf(TooLarge, "%s have more than %d bytes", r.limit.what, r.limit.most)
	}
	return n, err
}

// whiteoutPrefix begins the names of files that take others away that earlier layers have.
const whiteoutPrefix = ".wh."

func (a *layerFiles) entry(h *tar.Header, in io.Reader) error {
	at := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	dir, base := path.Split(at)
	if gone, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if gone == whiteoutPrefix+".opq" {
			gone = ""
		}
		maps.DeleteFunc(a.files, func(file string, _ resource.InlineFile) bool {
			return file == dir+gone || strings.HasPrefix(file, strings.TrimSuffix(dir+gone, "/")+"/")
		})
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg:
		return a.add(at, uint32(h.Mode)&0o777, h.Size, in)
	}
	return errorf(Invalid, "%s is a link or a device, and only files are taken", at)
}

func (a *layerFiles) add(at string, mode uint32, size int64, r io.Reader) error {
	if !filepath.IsLocal(at) || path.Clean(at) != at || at == "." {
		return errorf(Invalid, "%.200q is no name of a file", at)
	}
	if len(a.files) == a.mostFiles {
		return errorf(TooLarge, "it has more than %d files", a.mostFiles)
	}
	if a.left -= size + int64(len(at)); a.left < 0 {
		return errorf(TooLarge, "its files have more than %d bytes", a.most)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	kept, err := a.keep(File{at, mode, data})
	a.files[at] = kept
	return err
}

func (c *Client) insecure(r RepositoryAccess) []name.Option {
	if strings.HasPrefix(r.Spec.URL, "http://") {
		return []name.Option{name.Insecure}
	}
	return nil
}

func (c *Client) registry(ctx context.Context, r RepositoryAccess) ([]remote.Option, error) {
	hc, auth, err := c.registryAuth(r)
	if err != nil {
		return nil, err
	}
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(hc.Transport), remote.WithAuth(auth), withoutRetry}, nil
}

func (c *Client) registryAuth(r RepositoryAccess) (*http.Client, authn.Authenticator, error) {
	hc, err := c.http(r)
	switch {
	case len(r.Secret["username"]) > 0:
		return hc, &authn.Basic{Username: string(r.Secret["username"]), Password: string(r.Secret["password"])}, err
	case len(r.Secret["token"]) > 0:
		return hc, &authn.Bearer{Token: string(r.Secret["token"])}, err
	}
	return hc, authn.Anonymous, err
}

// withoutRetry has the caller try again, who does that for all sources.
var withoutRetry = remote.WithRetryBackoff(remote.Backoff{Steps: 1})

// registryError gives an error of a registry its reason.
func registryError(ctx context.Context, err error, what string) error {
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode != 0 {
		return errorf(statusReason(answer.StatusCode), "%s: the registry answers %d", what, answer.StatusCode)
	}
	return explainError(ctx, err, what)
}
