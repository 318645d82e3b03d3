// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// ResolverOptions are what a Resolver is made from.
type ResolverOptions struct {
	Client *Client
	// Objects read Repositories, Secrets and ConfigMaps, and write Repositories' statuses.
	Objects *objects.Controller
	// Reader and Writer have the records of kind resource.KindSource.
	Reader store.Reader
	Writer store.Writer
	// Blobs keep the contents, for as long as Refs names them.
	Blobs interface {
		Put(ctx context.Context, r io.Reader, want string) (digest string, size int64, err error)
		Has(digest string) (size int64, ok bool)
	}
	// Interval is how often a source is read; 0: 5 minutes.
	Interval time.Duration
	Now      func() time.Time // nil: time.Now
}

// Resolver says what references to sources stand for. It keeps a record for each source that somebody uses, which is read again
// after an interval, when its Repository or the Secret of that changes, and when a webhook says so. Those that use a source watch
// the records: one is written only if it is another than before.
type Resolver struct {
	ResolverOptions
	started      time.Time
	repositories *control.Index[resource.RepositorySpec] // by their Secrets

	mu    sync.Mutex
	used  map[string]*usedSource   // by the name of the record
	uses  map[store.Key][]string   // by user: the names of the records
	read  map[string]lastRead      // by the name of the record
	locks map[string]chan struct{} // by the name of the record: full while it is read
}

// usedSource is a source that somebody uses.
type usedSource struct {
	ref       resource.Reference
	intervals map[store.Key]time.Duration // how often each user wants it to be read; 0: as often as the hub does
	notified  time.Time                   // when something said that it is to be read
}

// lastRead is how a source was read last.
type lastRead struct {
	at       time.Time
	failures int // one after another, since something said that it is to be read
}

// next is how long after it was read a source is read again. One that failed is tried again sooner, and each time half as often,
// down to as often as others.
func (l lastRead) next(every time.Duration) time.Duration {
	if l.failures == 0 {
		return every
	}
	return backoff.Backoff{Min: firstSourceRetry, Max: every}.Wait(l.failures - 1)
}

const firstSourceRetry = time.Minute

// NewResolver makes a resolver.
func NewResolver(o ResolverOptions) *Resolver {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Interval = cmp.Or(o.Interval, 5*time.Minute)
	return &Resolver{
		ResolverOptions: o, started: o.Now(), used: make(map[string]*usedSource), uses: make(map[store.Key][]string), read: make(map[string]lastRead),
		locks: make(map[string]chan struct{}), repositories: &control.Index[resource.RepositorySpec]{Kind: resource.KindRepository, Of: indexRepository},
	}
}

// Controllers read sources again, and say at Repositories whether they can be read.
func (s *Resolver) Controllers() []control.Controller {
	return []control.Controller{
		{
			Name: "sources", Workers: 16, Reconcile: s.reconcile, Indexes: []control.Indexer{s.repositories}, Timeout: 5 * time.Minute, // one that does not answer must not hold up others
			Watches: []control.Watch{
				{Kind: resource.KindSource},
				{Kind: resource.KindRepository, Changes: s.sourcesOfRepository},
				{Kind: resource.KindSecret, Keys: s.sourcesOfSecret},
			},
		},
		{
			Name: "repositories", Workers: 8, Reconcile: s.repository, Indexes: []control.Indexer{s.repositories}, Timeout: 2 * time.Minute,
			Watches: []control.Watch{
				{Kind: resource.KindRepository, DataOnly: true},
				{Kind: resource.KindSecret, Keys: func(o store.Object) []store.Key { return s.repositories.Referring(o.Key) }},
			},
		},
	}
}

// sourceRecord is what is stored of a source.
type sourceRecord struct {
	resource.Reference
	// Failure is why it could not be read the last time. Resolved and Files are those of the last time that it could.
	Failure *Error `json:"failure,omitempty"`
}

// recordName is the name of a reference's record.
func recordName(r resource.Reference) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{r.Type, r.Source, r.Path, r.Floating}, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func recordKey(name string) store.Key { return store.Key{Kind: resource.KindSource, Name: name} }

// Use notes the sources that somebody uses, instead of those before, and how often they are to be read; 0: as often as the hub does.
// References to what the hub has itself are left out.
func (s *Resolver) Use(user store.Key, refs []resource.Reference, every time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.uses[user]
	var names []string
	for _, r := range refs {
		if !r.IsSource() {
			continue
		}
		name := recordName(r)
		names = append(names, name)
		if s.used[name] == nil {
			s.used[name] = &usedSource{ref: r, intervals: make(map[store.Key]time.Duration)}
		}
		s.used[name].intervals[user] = every
	}
	for _, name := range before {
		if !slices.Contains(names, name) && s.used[name] != nil {
			delete(s.used[name].intervals, user)
			if len(s.used[name].intervals) == 0 {
				delete(s.used, name)
			}
		}
	}
	if s.uses[user] = names; len(names) == 0 {
		delete(s.uses, user)
	}
}

// Users are the keys, of one kind, of those that use a record.
func (s *Resolver) Users(kind string) func(store.Object) []store.Key {
	return func(o store.Object) (keys []store.Key) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if u := s.used[o.Name]; u != nil {
			for key := range u.intervals {
				if key.Kind == kind {
					keys = append(keys, key)
				}
			}
		}
		slices.SortFunc(keys, store.Key.Compare)
		return keys
	}
}

// Known is what a reference stood for when it was read last; it reads nothing. Why it could not be read is in failure, also if
// it could before. With neither it is being read for the first time: the record changes when that is done.
func (s *Resolver) Known(ctx context.Context, ref resource.Reference) (known resource.Reference, failure error, err error) {
	rec, rev, err := s.load(ctx, ref)
	if err == nil && rev == 0 {
		_, err = s.Writer.Create(ctx, s.encodeRecord(sourceRecord{Reference: ref}))
		if errors.Is(err, resource.AlreadyExists) {
			err = nil
		}
	}
	if rec.Failure != nil {
		failure = rec.Failure
	}
	return rec.Reference, failure, err
}

// load reads a record; rev is 0 if there is none.
func (s *Resolver) load(ctx context.Context, ref resource.Reference) (rec sourceRecord, rev uint64, err error) {
	rec.Reference = ref
	stored, err := s.Reader.Get(ctx, recordKey(recordName(ref)))
	if errors.Is(err, resource.NotFound) {
		return rec, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(stored.Data, &rec)
	}
	return rec, stored.Rev, err
}

func (s *Resolver) encodeRecord(rec sourceRecord) store.Object {
	data, _ := json.Marshal(rec) // texts and numbers
	return store.Object{Key: recordKey(recordName(rec.Reference)), Data: data}
}

// Resolve says what a reference stands for. A source that was last read before notBefore is read now.
func (s *Resolver) Resolve(ctx context.Context, ref resource.Reference, notBefore time.Time) (resource.Reference, error) {
	ref.Resolved, ref.Files = "", nil
	switch {
	case ref.Type == resource.RefConfigMap:
		return s.configMap(ctx, ref)
	case ref.Type == resource.RefSecret:
		return s.secret(ctx, ref)
	}
	rec, err := s.update(ctx, ref, notBefore)
	if err == nil && rec.Failure != nil {
		err = rec.Failure
	}
	return rec.Reference, err
}

// update reads a source, unless it was read since notBefore, and stores what came of it.
func (s *Resolver) update(ctx context.Context, ref resource.Reference, notBefore time.Time) (sourceRecord, error) {
	name := recordName(ref)
	lock := s.lock(name)
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
	case <-ctx.Done(): // somebody else reads it
		return sourceRecord{Reference: ref}, ctx.Err()
	}
	rec, rev, err := s.load(ctx, ref)
	if err != nil {
		return rec, err
	}
	if known := rec.Resolved != "" || rec.Failure != nil; known && !s.lastRead(name).at.Before(notBefore) {
		return rec, nil
	}
	began := s.Now()
	next, err := s.fetch(ctx, rec)
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return rec, ctx.Err() // the hub stops
	}
	if err != nil {
		var why *Error
		if !errors.As(err, &why) {
			why = &Error{Unavailable, err.Error()}
			if errors.Is(err, resource.NotFound) {
				why.Reason = NotFound
			}
		}
		next = rec
		next.Failure = why
	}
	err = store.Put(ctx, s.Writer, s.encodeRecord(next), rev)
	if errors.Is(err, resource.AlreadyExists) { // Known has made it meanwhile, and nobody else writes it while this one has the lock
		if _, rev, err = s.load(ctx, ref); err == nil {
			err = store.Put(ctx, s.Writer, s.encodeRecord(next), rev)
		}
	}
	if err == nil {
		s.mu.Lock()
		last := lastRead{at: began}
		if next.Failure != nil {
			last.failures = s.read[name].failures + 1
		}
		s.read[name] = last
		s.mu.Unlock()
	}
	return next, err
}

func (s *Resolver) lock(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[name] == nil {
		s.locks[name] = make(chan struct{}, 1)
	}
	return s.locks[name]
}

func (s *Resolver) lastRead(name string) lastRead {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read[name]
}

// reconcile reads a source that is due, and deletes the record of one that nobody uses.
func (s *Resolver) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	s.mu.Lock()
	u := s.used[key.Name]
	var ref resource.Reference
	every, dirty := s.Interval, false
	last := s.read[key.Name]
	if u != nil {
		ref, dirty = u.ref, !u.notified.Before(last.at)
		for _, wanted := range u.intervals {
			if wanted > 0 {
				every = min(every, wanted)
			}
		}
	}
	s.mu.Unlock()
	if u == nil {
		return s.unused(ctx, key)
	}
	if wait := last.at.Add(last.next(every)).Sub(s.Now()); !dirty && wait > 0 {
		return wait, nil
	}
	_, err := s.update(ctx, ref, s.Now())
	return s.lastRead(key.Name).next(every), err
}

// unused deletes the record of a source that nobody uses. After a start those that use it have not said so yet.
func (s *Resolver) unused(ctx context.Context, key store.Key) (time.Duration, error) {
	if wait := s.started.Add(s.Interval).Sub(s.Now()); wait > 0 {
		return wait, nil
	}
	o, err := s.Reader.Get(ctx, key)
	if err == nil {
		_, err = s.Writer.Delete(ctx, key, o.Rev)
	}
	s.mu.Lock()
	delete(s.read, key.Name)
	delete(s.locks, key.Name)
	s.mu.Unlock()
	return 0, store.IgnoreNotFound(err)
}

// fetch reads a source. What it contains is read only if it stands for something else than before.
func (s *Resolver) fetch(ctx context.Context, was sourceRecord) (next sourceRecord, err error) {
	next.Reference = was.Reference
	r := &next.Reference
	switch r.Type {
	case resource.RefImage:
		err = s.image(ctx, r)
	case resource.RefGit:
		err = s.git(ctx, r)
	case resource.RefHTTP:
		err = s.http(ctx, r)
	case resource.RefOCI:
		err = s.artifact(ctx, r)
	}
	return next, err
}

// has says whether all contents are there. A blob that was damaged is not.
func (s *Resolver) has(files []resource.InlineFile) bool {
	return !slices.ContainsFunc(files, func(f resource.InlineFile) bool { _, ok := s.Blobs.Has(f.Digest); return !ok })
}

func (s *Resolver) image(ctx context.Context, r *resource.Reference) error {
	if strings.HasPrefix(r.Floating, resource.DigestPrefix) {
		r.Resolved = r.Floating
		return nil
	}
	repo, err := s.registryAccess(ctx, r.Source)
	if err == nil {
		r.Resolved, err = s.Client.Digest(ctx, repo, r.Source+":"+r.Floating)
	}
	return err
}

func (s *Resolver) artifact(ctx context.Context, r *resource.Reference) error {
	repo, err := s.registryAccess(ctx, r.Source)
	if err != nil {
		return err
	}
	known := r.Resolved
	if !s.has(r.Files) {
		known = ""
	}
	image := r.Source + ":" + r.Floating
	if strings.HasPrefix(r.Floating, resource.DigestPrefix) {
		image = r.Source + "@" + r.Floating
	}
	digest, files, err := s.Client.Artifact(ctx, repo, image, known, func(f File) (resource.InlineFile, error) {
		return s.keep(ctx, filePathAt("", f), int(f.Mode), f.Content)
	})
	if err != nil || digest == known {
		return err
	}
	r.Resolved, r.Files = digest, files
	return nil
}

func (s *Resolver) git(ctx context.Context, r *resource.Reference) error {
	repo, err := s.repositoryAccess(ctx, r.Source)
	if err != nil {
		return err
	}
	commit, err := s.Client.Commit(ctx, repo, r.Floating)
	if err != nil || commit == r.Resolved && s.has(r.Files) {
		return err
	}
	var kept []resource.InlineFile
	err = s.Client.Files(ctx, repo, commit, r.Path, func(f File) error {
		file, err := s.keep(ctx, filePathAt(r.Path, f), int(f.Mode), f.Content)
		kept = append(kept, file)
		return err
	})
	if err != nil {
		return err
	}
	r.Resolved, r.Files = commit, kept
	return nil
}

func (s *Resolver) http(ctx context.Context, r *resource.Reference) error {
	repo, err := s.repositoryAccess(ctx, r.Source)
	if err != nil {
		return err
	}
	if repo.Spec.Type != "http" { // its credentials are for git, or for a registry
		return errorf(Invalid, "the Repository %s has the type %s, and an httpRef needs one of type http", r.Source, cmp.Or(repo.Spec.Type, "git"))
	}
	var file resource.InlineFile
	err = s.Client.Get(ctx, repo, r.Path, func(body io.Reader) error {
		digest, size, err := s.Blobs.Put(ctx, body, "")
		mode := 0o644
		file = resource.InlineFile{Path: "/body", Digest: digest, Size: size, Mode: &mode}
		return err
	})
	if err != nil {
		return err
	}
	r.Resolved, r.Files = file.Digest, []resource.InlineFile{file}
	return nil
}

// filePathAt is the path of a file that was found at a path of a source.
func filePathAt(at string, f File) string {
	if f.Path == "." {
		return "/" + path.Base(at)
	}
	return "/" + f.Path
}

func (s *Resolver) keep(ctx context.Context, at string, mode int, content []byte) (resource.InlineFile, error) {
	digest, size, err := s.Blobs.Put(ctx, bytes.NewReader(content), resource.DigestOf(content))
	return resource.InlineFile{Path: at, Digest: digest, Size: size, Mode: &mode}, err
}

func (s *Resolver) configMap(ctx context.Context, r resource.Reference) (resource.Reference, error) {
	namespace, name, _ := strings.Cut(r.Source, "/")
	m, err := objects.Get[resource.ConfigMap](ctx, s.Objects, store.Key{Kind: resource.KindConfigMap, Namespace: namespace, Name: name})
	if err != nil {
		return r, err
	}
	values := m.Values()
	var all bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(values)) {
		f, err := s.keep(ctx, path.Join(r.Path, key), 0o644, values[key])
		if err != nil {
			return r, err
		}
		r.Files = append(r.Files, f)
		fmt.Fprintf(&all, "%s %s\n", f.Digest, key)
	}
	r.Resolved = resource.DigestOf(all.Bytes())
	return r, nil
}

// secret notes which Secret it is. Its values are kept nowhere else, and a hash of them would help to guess them.
func (s *Resolver) secret(ctx context.Context, r resource.Reference) (resource.Reference, error) {
	namespace, name, _ := strings.Cut(r.Source, "/")
	secret, err := objects.Get[resource.Secret](ctx, s.Objects, store.Key{Kind: resource.KindSecret, Namespace: namespace, Name: name})
	if err != nil {
		return r, err
	}
	r.Resolved = secret.Metadata.UID
	return r, nil
}

// repositoryAccess is a Repository with the values of its Secret.
func (s *Resolver) repositoryAccess(ctx context.Context, name string) (RepositoryAccess, error) {
	stored, err := objects.Get[resource.Repository](ctx, s.Objects, store.Key{Kind: resource.KindRepository, Name: name})
	if err != nil {
		return RepositoryAccess{}, err
	}
	return s.withSecret(ctx, stored.Spec)
}

// registryAccess is the Repository of type oci that an image is in, with its credentials; the one with the longest address if there
// are several, and the zero value if there is none.
func (s *Resolver) registryAccess(ctx context.Context, image string) (found RepositoryAccess, err error) {
	var best *resource.Repository
	for r, err := range objects.List[resource.Repository](ctx, s.Objects, "") {
		if err != nil {
			return found, err
		}
		if r.Spec.Has(image) && (best == nil || len(r.Spec.URL) > len(best.Spec.URL)) {
			best = r
		}
	}
	if best == nil {
		return found, nil
	}
	return s.withSecret(ctx, best.Spec)
}

func credentialsKey(spec resource.RepositorySpec) (key store.Key) {
	if spec.SecretRef != nil {
		key = store.Key{Kind: resource.KindSecret, Namespace: cmp.Or(spec.SecretRef.Namespace, resource.DefaultNamespace), Name: spec.SecretRef.Name}
	}
	return key
}

func (s *Resolver) withSecret(ctx context.Context, spec resource.RepositorySpec) (RepositoryAccess, error) {
	repo := RepositoryAccess{Spec: spec, Secret: spec.Credentials}
	if spec.SecretRef == nil {
		return repo, nil
	}
	secret, err := objects.Get[resource.Secret](ctx, s.Objects, credentialsKey(spec))
	if err != nil {
		return repo, fmt.Errorf("the Repository's %w", err)
	}
	repo.Secret = make(map[string][]byte)
	maps.Copy(repo.Secret, spec.Credentials)
	maps.Copy(repo.Secret, secret.Data)
	return repo, nil
}

// sourcesOfRepository has the sources of a Repository read that has changed, or of which a webhook has said so.
func (s *Resolver) sourcesOfRepository(before, now *store.Object) (keys []store.Key) {
	if before != nil && now != nil && sameForSources(*before, *now) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range []*store.Object{before, now} { // images may be in another Repository now, or in none
		var r resource.Repository
		if o != nil && json.Unmarshal(o.Data, &r) == nil {
			keys = append(keys, s.notifySources(o.Name, r.Spec)...)
		}
	}
	return keys
}

// sameForSources says whether the sources of a Repository needn't be read again after a change.
func sameForSources(before, now store.Object) bool {
	dependsOn := func(o store.Object) string {
		var r resource.Repository
		_, _ = json.Unmarshal(o.Data, &r), json.Unmarshal(o.Status, &r.Status) // there may be no status
		text, _ := json.Marshal([]any{r.Metadata.UID, r.Spec, r.Status.NotifiedAt})
		return string(text)
	}
	return dependsOn(before) == dependsOn(now)
}

// indexRepository has a Repository found by its Secret.
func indexRepository(o store.Object) (spec resource.RepositorySpec, refs []store.Key, ok bool) {
	var r resource.Repository
	if json.Unmarshal(o.Data, &r) != nil {
		return spec, nil, false
	}
	if key := credentialsKey(r.Spec); key.Name != "" {
		refs = []store.Key{key}
	}
	return r.Spec, refs, true
}

// sourcesOfSecret has the sources read of the Repositories whose credentials have changed.
func (s *Resolver) sourcesOfSecret(o store.Object) (keys []store.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, repository := range s.repositories.Referring(o.Key) {
		spec, _ := s.repositories.Get(repository)
		keys = append(keys, s.notifySources(repository.Name, spec)...)
	}
	return keys
}

// notifySources has the sources of a Repository read, whenever they were before. s.mu is held.
func (s *Resolver) notifySources(repository string, spec resource.RepositorySpec) (keys []store.Key) {
	for name, u := range s.used {
		of := u.ref.Source == repository
		if u.ref.Type == resource.RefImage || u.ref.Type == resource.RefOCI {
			of = spec.Has(u.ref.Source)
		}
		if of {
			u.notified = s.Now()
			s.read[name] = lastRead{at: s.read[name].at}
			keys = append(keys, recordKey(name))
		}
	}
	return keys
}

// repository says at a Repository whether it can be read.
func (s *Resolver) repository(ctx context.Context, key store.Key) (time.Duration, error) {
	stored, err := objects.Get[resource.Repository](ctx, s.Objects, key)
	if errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	cond := resource.Condition{
		Type: resource.ConditionAccessible, Status: "True", Reason: "Accessible", Message: "it can be read", ObservedGeneration: stored.Metadata.Generation,
	}
	repo, err := s.withSecret(ctx, stored.Spec)
	if err == nil {
		err = s.Client.Accessible(ctx, repo)
	}
	again := s.Interval
	if err != nil {
		var why *Error
		cond.Status, cond.Reason, cond.Message = "False", string(NotFound), err.Error()
		if errors.As(err, &why) {
			cond.Reason = why.Cause()
		}
		again = min(again, time.Minute)
	}
	err = objects.UpdateStatus(ctx, s.Objects, key, func(r *resource.Repository) error {
		r.Status.Conditions = resource.SetCondition(r.Status.Conditions, cond, s.Now())
		return nil
	})
	return again, store.IgnoreNotFound(err)
}

// IsFetched says whether a blob was fetched from a Repository: a record of a source has it, or what a fleet has frozen of one.
func IsFetched(r store.Reader) func(ctx context.Context, digest string) (bool, error) {
	return func(ctx context.Context, digest string) (found bool, err error) {
		for _, kind := range []string{resource.KindSource, resource.KindTemplateVersion, resource.KindNode} {
			for o, err := range store.All(ctx, r, kind, store.ListOptions{}) {
				if err != nil {
					return false, err
				}
				if !bytes.Contains(o.Data, []byte(digest)) {
					continue // not decoding most of them
				}
				files, err := fetchedFiles(o)
				if err != nil || slices.ContainsFunc(files, func(f resource.InlineFile) bool { return f.Digest == digest }) {
					return err == nil, err
				}
			}
		}
		return false, nil
	}
}

// fetchedFiles are the files of an object that came from Repositories.
func fetchedFiles(o store.Object) (files []resource.InlineFile, err error) {
	var v struct {
		resource.Reference
		Spec struct {
			resource.NodeSpec
			References []resource.Reference `json:"references"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(o.Data, &v); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	for _, ref := range append(v.Spec.References, v.Reference) {
		if ref.IsSource() {
			files = append(files, ref.Files...)
		}
	}
	for _, item := range v.Spec.Config {
		if item.GitRef != nil || item.HTTPRef != nil || item.OCIRef != nil {
			files = append(files, item.Files...)
		}
	}
	for _, a := range v.Spec.Applications {
		if a.Image != "" {
			files = append(files, a.Files...)
		}
	}
	return files, nil
}
