package sources

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
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
		return "", explain(err, image)
	}
	found, err := remote.Head(ref, options...)
	if err != nil {
		return "", ofRegistry(err, image)
	}
	return found.Digest.String(), nil
}

// pingRegistry asks for the repository's tags, or only whether there is a registry if it names no repository.
func (c *Client) pingRegistry(ctx context.Context, r Repo) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	_, place, _ := strings.Cut(r.Spec.URL, "://")
	options, err := c.registry(ctx, r)
	if err != nil {
		return explain(err, place)
	}
	host, _, _ := strings.Cut(place, "/")
	reg, err := name.NewRegistry(host, c.insecure(r)...)
	if err != nil {
		return failed(Invalid, "%s is no address of a registry: %v", place, err)
	}
	_, err = remote.CatalogPage(reg, "", 1, options...)
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound { // it has no catalogue, and answers
		err = nil
	}
	return ofRegistry(err, place)
}

func (c *Client) insecure(r Repo) []name.Option {
	if strings.HasPrefix(r.Spec.URL, "http://") {
		return []name.Option{name.Insecure}
	}
	return nil
}

func (c *Client) registry(ctx context.Context, r Repo) ([]remote.Option, error) {
	hc, err := c.http(r)
	if err != nil {
		return nil, err
	}
	auth := authn.Anonymous
	switch {
	case len(r.Secret["username"]) > 0:
		auth = &authn.Basic{Username: string(r.Secret["username"]), Password: string(r.Secret["password"])}
	case len(r.Secret["token"]) > 0:
		auth = &authn.Bearer{Token: string(r.Secret["token"])}
	}
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(hc.Transport), remote.WithAuth(auth), once}, nil
}

// once has the caller try again, who does that for all sources.
var once = remote.WithRetryBackoff(remote.Backoff{Steps: 1})

// ofRegistry gives an error of a registry its reason.
func ofRegistry(err error, what string) error {
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode != 0 {
		return failed(ofStatus(answer.StatusCode), "%s: the registry answers %d", what, answer.StatusCode)
	}
	return explain(err, what)
}
