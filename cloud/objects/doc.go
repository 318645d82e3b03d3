// SPDX-License-Identifier: Apache-2.0

// Package objects is the layer between the hub's objects and its store: the one place in which objects are read and written
// by the rules for all of them. Defaults, validation, generation, uid, owners, finalizers, managed fields, names that are
// unique over all namespaces, the sealing of Secrets, and "nothing changed is no write" are here, for the handlers of the
// API and for controllers alike. Controllers use the typed functions: Get, List, Create, Update, UpdateStatus.
//
// It never asks who may write what, but for what an object may refer to (Write.MayRefer), knows no HTTP, and keeps no object: whoever reads gets what the store has now.
//
// # Files, in reading order
//
//	objects.go            Options, Registry
//	kind.go               Kind: what the rules for all kinds have to know of one; objects as Go types and back
//	kinds.go              the kinds: Kinds() lists them, with their rules that need other objects
//	object.go             Object: what the store holds, decoded, encoded
//	sealed.go             the content of Secrets, which is encrypted before it is stored
//	controller.go         Get, List, Create, Update, UpdateStatus: objects as controllers read and write them
//	write.go              create and change: defaults, validation, generation, owners, retries after conflicts
//	claims.go             names that are unique over all namespaces
//	delete.go             deletion, finalizers, deletions that wait for users of an object
//	referenceindex.go     which objects use which: an index for deletions
//	references.go         what an object gives access to (Grants); annotations and finalizers that are the controllers'
//	managedfields.go      who owns which fields
//	rules.go              a Rule and its endpoints
//	records.go            internal records, which are no objects: a Writer that refuses objects
//	enrollmentrequest.go  approval of EnrollmentRequests: who has a node's name
//	templateversion.go    TemplateVersions that can't be deleted
//	selectors.go          the objects whose selector matches a Node
//
// # Where to add
//
//   - a rule for all kinds: Registry.validate (write.go).
//   - a rule for one kind that needs other objects: its row of Kinds (kinds.go). One that needs the object alone is in topics/resource.
//   - a field that makes the hub hand out something: References (references.go), so that who writes it must be allowed to read that.
package objects
