// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kind is a kind as clients see it. Functions may be nil.
type Kind struct {
	objects.Kind
	Plural, Singular string
	Short            []string
	// NoStatus says that there is no status.
	NoStatus bool
	// FieldNames are the fields that have another name in this group, by their canonical names: Events are in two groups.
	FieldNames map[string]string
	// WrittenBy names the only ones who create and change objects; users read and delete them. Empty: users do.
	WrittenBy string
	// HasCredentials says that objects may hold credentials outside of Secrets: only users with access to all nodes may
	// read them.
	HasCredentials bool
	// dialect is set if the kind is another group's form of one of ours.
	dialect *dialectKind

	// Reset clears the fields of a decoded object that clients can neither see nor set, and returns their names.
	Reset func(obj any) []string
	// Node returns the node that an object belongs to; ok is false if it belongs to none. Without Node no object of the
	// kind does: all readers may read it, and only users with access to all nodes write it.
	Node func(ctx context.Context, r store.Reader, obj any) (name string, ok bool)

	Columns []Column
	// NoDefaultColumns leaves out the columns Name and Age.
	NoDefaultColumns bool
	// Cells returns the values of Columns. A time is shown as an age, an empty text as <none>.
	Cells func(obj any) []any
	// Fields are the field selectors besides metadata.name and metadata.namespace. Their values must occur in the
	// object's JSON as they are: an object without that text is skipped without being decoded.
	Fields map[string]func(obj any) string
	// Computed are those of Fields whose values follow from the object, and may not occur in its JSON.
	Computed map[string]bool
	// StoredFields are those of Fields that are read from the stored object, without decoding it.
	StoredFields map[string]func(o store.Object) string
	// TableOmits are the parts of an object that Cells, Fields and Node don't use: for tables they are not decoded.
	TableOmits omittedFields
}

// Column is a column of kubectl get.
type Column struct {
	Name, Type, Description string
	Wide                    bool // with -o wide only
	// Path is the JSONPath of a column that shows one field: CRDs have such columns only (docs/crds.yaml).
	Path string
}

var (
	verbs          = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	readVerbs      = []string{"get", "list", "watch"}
	writeVerbs     = []string{"create", "update", "patch"} // not delete
	statusVerbs    = []string{"get", "patch", "update"}
	namespaceVerbs = []string{"get", "list"}
)

// root is the path of the kind's group and version.
func (k *Kind) root() string {
	if k.Group == "" {
		return "/api/" + k.Version
	}
	return "/apis/" + k.APIVersion()
}

// qualified is the kind's name in messages: devices.edgebus.io, secrets.
func (k *Kind) qualified() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// storeKind is the name of the kind in the store.
func (k *Kind) storeKind() string {
	if k.dialect != nil {
		return k.dialect.of.Name
	}
	return k.Name
}

// groupVersionKind is the kind's form, to field managers.
func (k *Kind) groupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Name}
}

// readOnly reports whether the kind can be read only.
func (k *Kind) readOnly() bool { return k.dialect != nil && k.dialect.ReadOnly }

// verbs are what can be done with objects of the kind.
func (k *Kind) verbs() []string {
	switch {
	case k == &namespaceKind:
		return namespaceVerbs
	case k.readOnly():
		return readVerbs
	}
	return verbs
}

// statusWriters are the only ones who write the status.
func (k *Kind) statusWriters() string {
	if k.storeKind() == resource.KindNode {
		return "the node itself (role node) and " + controllersText
	}
	return controllersText
}

// controllersText are those who act on objects.
const controllersText = "controllers (role controller, or an operator of all nodes with --as controller)"

// desiredInStatus reports whether the form has desired values in its status, as KubeEdge's older ones do. They are the only
// part of such a status that users write.
func (k *Kind) desiredInStatus() bool {
	return k.dialect != nil && k.storeKind() == resource.KindDevice
}

// patches are the media types of patches that the kind takes.
func (k *Kind) patches() []string {
	all := []string{jsonPatch, mergePatch, applyPatch}
	if k.Group != resource.Group && k.dialect == nil { // compiled into clients
		all = append(all, strategicPatch)
	}
	return all
}

// categories are the names under which kubectl asks for several kinds at once. Repositories, which may hold
// credentials, are left out like Secrets, so that users who may not read them can get all.
func (k *Kind) categories() []string {
	if k.Group == resource.Group && k.dialect == nil && !k.HasCredentials {
		return []string{"all"}
	}
	return nil
}

// schemaName is the name of the kind's schema: io.edgebus.v1alpha1.Device.
func (k *Kind) schemaName() string {
	group := k.Group
	if group == "" {
		group = "core"
	}
	parts := strings.Split(group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + k.Version + "." + k.Name
}

// typedCells is Cells of a kind.
func typedCells[T any](of func(*T) []any) func(any) []any {
	return func(obj any) []any { return of(obj.(*T)) }
}

// typedField is a field selector of a kind.
func typedField[T any](of func(*T) string) func(any) string {
	return func(obj any) string { return of(obj.(*T)) }
}
