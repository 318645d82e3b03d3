// SPDX-License-Identifier: Apache-2.0

// Package api serves the hub's objects over HTTP in the style of Kubernetes, so that kubectl and client-go work with it
// as they are.
//
// It never keeps an object: each answer is made of what the store holds. It never decides what an object means, nor what
// happens when one is written: rules that need nothing but the object are in topics/resource, and those of reading and
// writing in cloud/objects, through which every write goes.
//
// # Packages, in reading order
//
//	protobuf  what clients send in protobuf, as JSON
//	webhook   webhooks of git servers and registries
//	index     which Devices and Nodes there are of which state, from memory
//
// # Files, in reading order
//
//	api.go            Options, the server and its parts, routes, the parts of a path
//	access.go         who may do what (access, authorizer)
//	reviews.go        kubectl auth can-i and whoami
//	kind.go           what a kind is to clients: names, access, table columns
//	kinds.go          the kinds themselves: Kinds() lists them, a function for each
//	dialects.go       kinds in the form of another API group
//	list.go           what is read (lister): get, list, pages, selectors
//	indexed.go        lists that the index answers: counts, search, order, offset
//	watch.go          watch, bookmarks
//	fieldterms.go     field selectors as flightctl's clients write them
//	mirrored.go       lists and watches that a hub which stands by answers, and what the owner has to do with it
//	listturns.go      how many lists of one user are made at a time
//	namespaces.go     namespaces, which are no objects here
//	table.go          stored objects as clients see them (encoder): content negotiation, Tables
//	storedjson.go     stored JSON to client JSON without decoding, for lists and watches
//	decode.go         body to object: JSON, YAML, strict decoding, bounds
//	write.go          what is written (objectWriter): create and update, as cloud/objects is asked for it
//	patch.go          JSON, merge and strategic merge patches, server-side apply
//	managedfields.go  which manager an apply takes fields from
//	delete.go         delete, deletecollection
//	devices.go        a Device's properties and commands
//	history.go        what the properties of a Device were
//	audit.go          the newest entries of the audit log
//	enrollment.go     decisions about EnrollmentRequests, decommissioning
//	flightctl.go      what flightctl's clients ask for beside its kinds
//	renderedspecs.go  what a node is to apply, as its agent or flightctl's asks for it
//	discovery.go      API groups and resources
//	openapi.go        OpenAPI v2 and v3
//	errors.go         errors to Status objects
//
// # Where to add
//
//   - a property of a kind: the field with its comment in the kind's type in topics/resource (DeviceModel: topics/resource/model.go), its
//     rule in the type's Validate there, and make golden: schemas.json here and docs/crds.yaml are generated from the types and their
//     comments. kubectl explain, strict decoding and server-side apply follow from the schema. Only a new table column or field selector
//     needs a change here, in kinds.go. Dialects that have the field map it in topics/dialect.
//   - a kind: its type in topics/resource, its rules in cloud/objects/kinds.go, its columns in kinds.go.
//   - a right: access.may (access.go); docs/access.md has the rules for people.
package api
