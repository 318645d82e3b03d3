// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a Registry needs.
type Options struct {
	Reader store.Reader
	Writer store.Writer
	// Derived takes what follows from what is stored elsewhere; nil: Writer does.
	Derived store.DerivedStatuses
	Log     zerolog.Logger
	Now     func() time.Time // nil: time.Now
	// Seal encrypts Secrets for the store. Without it there are no Secrets.
	Seal Sealer
	// Managers track who owns which fields of an object. Without them its managed fields stay as they are.
	Managers *Managers
	// NodeReferences are what a Node gets because of its labels and annotations, by each of those who decide by them; see Write.MayRefer.
	NodeReferences []func(ctx context.Context, node resource.Meta) ([]Reference, error)
	// Fetched reports whether a blob was fetched from a Repository; nil: none was.
	Fetched func(ctx context.Context, digest string) (bool, error)
	// DeviceSettings are the settings that a node's mappers take for their Devices, and those of any node for the name "+"; nil: it isn't known of any.
	DeviceSettings func(node string) []resource.ProtocolSettings
	// Suffix completes a generateName. If the name is taken it is called again. Default: random letters.
	Suffix func() string
	// Audit is told of every write of a controller, of those that fail too; nil: nobody is. action is create, update,
	// "update status" or delete.
	Audit func(controller, action string, key store.Key, err error)
}

// Sealer encrypts what must not be readable in the store. A sealed text opens only with the same about.
type Sealer interface {
	Seal(plain []byte, about string) ([]byte, error)
	Open(sealed []byte, about string) ([]byte, error)
}

// Registry reads and writes objects.
type Registry struct {
	Options
	Grants     *Grants
	retryLocks [64]sync.Mutex // see retryLock
	kinds      []Kind
	types      map[reflect.Type]*Kind
	index      referenceIndex
	names      uniqueNames
	indexing   sync.Mutex // while indexed becomes true
	indexed    bool       // the index has what was stored before
}

// New makes a Registry. It first continues deletions that waited when the hub stopped.
func New(o Options) *Registry {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Suffix == nil {
		o.Suffix = randomSuffix
	}
	s := &Registry{
		Options: o, kinds: Kinds(), types: make(map[reflect.Type]*Kind),
		Grants: &Grants{reader: o.Reader, nodeReferences: o.NodeReferences, fetched: o.Fetched},
		names:  uniqueNames{reader: o.Reader, writer: o.Writer, log: o.Log},
	}
	for i := range s.kinds {
		s.types[reflect.TypeOf(s.kinds[i].New())] = &s.kinds[i]
	}
	s.continueDeletions(context.Background())
	return s
}

// Kind is the kind of a name, or nil.
func (s *Registry) Kind(name string) *Kind {
	i := slices.IndexFunc(s.kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &s.kinds[i]
}
