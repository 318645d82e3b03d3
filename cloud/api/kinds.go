package api

import (
	"context"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kind is all that the verbs have to be told of a kind. Functions may be nil.
type Kind struct {
	Name, Plural, Singular string
	Short                  []string
	Namespaced             bool
	// Group and Version are the API group; the core group has no name.
	Group, Version string
	// Flat says that there is no spec: what is wanted stands beside the metadata, as in a Secret.
	Flat bool
	// NoStatus says that nobody reports anything about such an object.
	NoStatus bool
	// Names are fields that have another name in this group than here, of a flat kind that is in two
	// groups. The first of the two has all names as they are.
	Names map[string]string
	// Sealed says that the store has the object encrypted, and that tables and messages never show it.
	Sealed bool
	// Kept says that nothing acts on objects of the kind yet: who writes one is warned.
	Kept bool
	// Made says who alone makes and changes such objects; users read and delete them. Empty: users do.
	Made string
	// Reports says who alone writes the status; empty: who may write the object.
	Reports string
	// Credentials says that objects may hold some, which other groups' forms have beside the spec: like Secrets they
	// are for who has all nodes.
	Credentials bool
	// foreign is set for another group's form of one of our kinds.
	foreign *foreign
	// shape is that of what New makes; nil: nothing is understood at a glance.
	shape *shape
	// New makes an empty object: *resource.Device. Its Go type says which fields there are.
	New func() any
	// Private are fields of that type that the API neither shows nor takes.
	Private []string
	// Validate checks an object before it is written; old is nil for a new one. It
	// is not asked when only metadata changed.
	Validate func(ctx context.Context, r store.Reader, old, next any) error
	// StatusRules says that Validate looks at the status of old. Otherwise it sees none; of next it never sees one.
	StatusRules bool
	// CheckStatus checks an object's status before it is written, but for the conditions, which all kinds have alike.
	CheckStatus func(obj any) error
	// Doubts say what may not be meant in an object that is valid: they are warnings. Like
	// Validate it is not asked when only metadata changed.
	Doubts func(ctx context.Context, r store.Reader, old, next any) []string
	// Prepare completes an object that is going to be written.
	Prepare func(old, next any, origin string, now time.Time)
	// StatusAfter is the status that is stored with an object whose spec is written: what is stored now, with what follows
	// from the spec. Without it a status is only written by who reports it.
	StatusAfter func(ctx context.Context, r store.Reader, old, next any, status []byte, now time.Time) ([]byte, error)
	// Node is the node that an object belongs to; ok is false for one that belongs to none. Without it
	// no object of the kind does: all who may read may read them, and only who has all nodes writes them.
	Node func(ctx context.Context, r store.Reader, obj any) (name string, ok bool)
	// UniqueName says that a name is taken in all namespaces at once.
	UniqueName bool
	// Holds names the objects that must not go away before this one.
	Holds func(obj any) []store.Key
	// HeldBy names the objects that hold this one.
	HeldBy func(ctx context.Context, r store.Reader, key store.Key) ([]string, error)

	Columns []Column
	// Bare says that Columns are all there are: no name first, no age last.
	Bare bool
	// Cells are the values of Columns. A time is shown as how long ago it was.
	Cells func(obj any) []any
	// Fields are the field selectors beside metadata.name and metadata.namespace. A text that is selected by
	// stands in the object's JSON as it is: what doesn't have it is passed by without being decoded.
	Fields map[string]func(obj any) string
	// Bulk are the parts of an object that neither Cells nor Fields nor Node look at: they are not decoded for these.
	Bulk bulk
}

// Column is a column of kubectl get.
type Column struct {
	Name, Type, Description string
	Wide                    bool // with -o wide only
	// Path is the JSONPath of its cells, if they are a field: a cluster's tables have these columns only (crds.yaml).
	Path string
}

// apiVersion is what apiVersion says in an object of the kind.
func (k *Kind) apiVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// root is the path below which the kind is.
func (k *Kind) root() string {
	if k.Group == "" {
		return "/api/" + k.Version
	}
	return "/apis/" + k.apiVersion()
}

// qualified is the kind's name in messages: devices.edgebus.io, secrets.
func (k *Kind) qualified() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Kinds are the canonical kinds, in the order in which they are listed.
func Kinds() []Kind {
	kinds := []Kind{
		deviceKind(), modelKind(), nodeKind(), fleetKind(), templateVersionKind(), repositoryKind(), resourceSyncKind(),
		upgradeKind(), configurationKind(), instanceKind(), enrollmentKind(),
	}
	for i := range kinds {
		kinds[i].Group, kinds[i].Version = resource.Group, resource.Version
	}
	kinds = append(kinds, secretKind(), configMapKind(), eventKind(), eventForm())
	for i := range kinds {
		kinds[i].shape = kinds[i].shapeOf()
	}
	return kinds
}

// rules is Validate of a kind whose rules look at nothing but the object and the one before.
// follows may be nil.
func rules[T any](valid func(T) error, follows func(next, prev T) error) func(context.Context, store.Reader, any, any) error {
	return func(_ context.Context, _ store.Reader, old, next any) error {
		n := next.(*T)
		if err := valid(*n); err != nil {
			return err
		}
		if prev, ok := old.(*T); ok && follows != nil {
			return follows(*n, *prev)
		}
		return nil
	}
}

// cells is Cells of a kind.
func cells[T any](of func(*T) []any) func(any) []any {
	return func(obj any) []any { return of(obj.(*T)) }
}

// field is a field selector of a kind.
func field[T any](of func(*T) string) func(any) string {
	return func(obj any) string { return of(obj.(*T)) }
}

func orUnknown(state string) string {
	if state == "" {
		return resource.Unknown
	}
	return state
}

func condition(list []resource.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return c.Status
		}
	}
	return "Unknown"
}
