// SPDX-License-Identifier: Apache-2.0

// Package webhook has what refers to a Repository read at once, when a git server or registry says that it has changed. Callers prove that
// they know a value of the Repository's Secret, and are no users.
//
// It never says which Repositories there are: whatever is wrong with the proof, the answer is the same.
package webhook

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// secretKey is the key of the value in a Secret that callers have to know.
const secretKey = "webhook-secret"

// maxBody bounds the body of a webhook, in bytes: anybody can have one read and hashed. GitHub's bodies may have up to 25 MiB, but one
// of a push has a few KiB; what is larger is refused, and the source is read after its interval.
const maxBody = 1 << 20

// Webhooks of one Repository beyond maxBurst at once, or one per minInterval for long, are refused: each has the hub read
// the repository. A refused one loses nothing: the sources are read after their interval anyway.
const (
	maxBurst    = 30
	minInterval = 2 * time.Second
)

// rateLimits are the rate limits of the webhooks of Repositories, by name. Only a caller that has proven that it knows the
// secret of a Repository is counted, so others neither use up its limit nor add one.
type rateLimits struct {
	mu sync.Mutex
	of map[string]*rate.Limiter
}

// allow reports whether one more webhook of a Repository is within its limit.
func (l *rateLimits) allow(repository string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.of[repository]
	if limit == nil {
		if l.of == nil {
			l.of = map[string]*rate.Limiter{}
		}
		maps.DeleteFunc(l.of, func(_ string, limit *rate.Limiter) bool { return limit.TokensAt(now) >= maxBurst }) // as good as new
		limit = rate.NewLimiter(rate.Every(minInterval), maxBurst)
		l.of[repository] = limit
	}
	return limit.AllowN(now, 1)
}

// maxSigned is how many signatures of a Repository's webhooks are remembered: at its limit, more than two hours of them.
const maxSigned = 4096

// acceptedSignatures are the newest signatures that were accepted, by Repository. Who reads a signed webhook on its way may send it again, but only the
// first has the repository read. It is forgotten when the hub restarts; then the limit alone bounds what is sent again.
type acceptedSignatures struct {
	mu sync.Mutex
	of map[string]*repositorySignatures
}

type repositorySignatures struct {
	known map[[sha256.Size]byte]bool
	order [][sha256.Size]byte // oldest first
}

// has reports whether a signature was accepted for the Repository.
func (s *acceptedSignatures) has(repository string, signature []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.of[repository]
	return have != nil && len(signature) == sha256.Size && have.known[[sha256.Size]byte(signature)]
}

// add remembers a signature that was accepted.
func (s *acceptedSignatures) add(repository string, signature []byte) {
	if len(signature) != sha256.Size {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]*repositorySignatures)
	}
	have := s.of[repository]
	if have == nil {
		have = &repositorySignatures{known: make(map[[sha256.Size]byte]bool)}
		s.of[repository] = have
	}
	key := [sha256.Size]byte(signature)
	if have.known[key] {
		return
	}
	have.known[key] = true
	if have.order = append(have.order, key); len(have.order) > maxSigned {
		delete(have.known, have.order[0])
		have.order = have.order[1:]
	}
}

// Receiver serves webhooks.
type Receiver struct {
	Objects *objects.Registry
	Reads   *objects.Controller // it writes nothing by it
	Log     zerolog.Logger
	Now     func() time.Time
	limits  rateLimits
	signed  acceptedSignatures
}

// Paths are where it is served, with the Repository's name for *.
var Paths = []string{"/api/v1/repositories/*/webhook", "/apis/" + resource.APIVersion + "/repositories/*/webhook"}

// IsRequest reports whether a request is one.
func IsRequest(r *http.Request) bool {
	for _, pattern := range Paths {
		if ok, err := path.Match(pattern, r.URL.Path); ok && err == nil && r.Method == http.MethodPost {
			return true
		}
	}
	return false
}

// ServeHTTP notes at a Repository that it was told of a change. Whatever is wrong with the proof, the answer is the same: it tells
// nobody which Repositories there are.
func (h *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if r.ContentLength > maxBody { // whatever the Repository
		return resource.Errorf(resource.TooLarge, "", "a webhook has at most %d bytes, this one %d", maxBody, r.ContentLength)
	}
	audit.NoteUser(r, "webhook/"+name, "webhook")
	refused := resource.Errorf(resource.Unauthorized, "", "a webhook needs a Repository whose Secret has the key %s, and has to prove that it knows its value: "+
		"X-Hub-Signature-256, X-Gitea-Signature, X-Gitlab-Token, or Authorization: Bearer", secretKey)
	key := store.Key{Kind: resource.KindRepository, Name: name}
	repository, err := objects.Get[resource.Repository](r.Context(), h.Reads, key)
	if err != nil {
		if errors.Is(err, resource.NotFound) {
			return refused
		}
		return err
	}
	secret, err := h.secret(r.Context(), repository.Spec.SecretRef)
	if err != nil && !errors.Is(err, resource.NotFound) { // the answer must not reveal that there is a Repository, and name its Secret
		h.Log.Error().Err(err).Str("repository", name).Msg("a webhook is refused: the Secret of its Repository can't be read")
	}
	if len(secret) == 0 {
		return refused
	}
	ok, signature, err := verifyProof(w, r, secret)
	switch {
	case err != nil:
		return err
	case !ok:
		return refused
	case h.signed.has(name, signature): // it was sent twice
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if !h.limits.allow(name, h.Now()) {
		w.Header().Set("Retry-After", strconv.Itoa(int(minInterval.Seconds())))
		return resource.Errorf(resource.Quota, "", "the Repository %s has had too many webhooks: at most %d at once, and one per %v for long",
			name, maxBurst, minInterval)
	}
	_, err = h.Objects.Change(r.Context(), key, &objects.WriteOptions{Manager: "webhook", Part: objects.Status}, func(old *objects.Object) (*objects.Object, error) {
		var status resource.RepositoryStatus
		if len(old.Status) > 0 {
			if err := json.Unmarshal(old.Status, &status); err != nil {
				return nil, err
			}
		}
		status.NotifiedAt = h.Now().UTC().Format(time.RFC3339Nano)
		next := *old
		next.Metadata.ResourceVersion = ""
		var err error
		next.Status, err = json.Marshal(status)
		return &next, err
	})
	if errors.Is(err, resource.NotFound) {
		return refused
	}
	if err != nil {
		return err
	}
	h.signed.add(name, signature)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// secret is the value that callers have to know; empty: there is none.
func (h *Receiver) secret(ctx context.Context, ref *resource.SecretRef) ([]byte, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := objects.Get[resource.Secret](ctx, h.Reads, store.Key{Namespace: cmp.Or(ref.Namespace, resource.DefaultNamespace), Name: ref.Name})
	if err != nil {
		return nil, err
	}
	return secret.Data[secretKey], nil
}

// verifyProof reports whether a request shows that its sender knows a secret, and returns its signature if it does so by one. The body is read
// only if it is signed.
func verifyProof(w http.ResponseWriter, r *http.Request, secret []byte) (ok bool, signature []byte, err error) {
	same := func(text string) bool { return text != "" && subtle.ConstantTimeCompare([]byte(text), secret) == 1 }
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && same(bearer) || same(r.Header.Get("X-Gitlab-Token")) {
		return true, nil, nil
	}
	text, _ := strings.CutPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256=")
	if text == "" {
		text = r.Header.Get("X-Gitea-Signature")
	}
	signature, err = hex.DecodeString(text)
	if err != nil || len(signature) != sha256.Size {
		return false, nil, nil //nolint:nilerr // it is no signature
	}
	mac := hmac.New(sha256.New, secret)
	_, err = io.Copy(mac, http.MaxBytesReader(w, r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) { // its length was not known before: the answer must not reveal that there is a secret
		return false, nil, nil
	}
	if err != nil {
		return false, nil, resource.Errorf(resource.Invalid, "", "the body can't be read: %v", err)
	}
	return hmac.Equal(mac.Sum(nil), signature), signature, nil
}
