// Package api serves the hub's objects over HTTP in the style of Kubernetes, so that kubectl and client-go work with it
// as they are.
//
// It never keeps an object: each answer is made of what the store holds. It never decides what an object means, nor what
// happens when one is written: rules that need nothing but the object are in topics/resource, and those of reading and
// writing in cloud/objects, through which every write goes.
//
// Where to find what:
//
//	api.go            options, routes, the parts of a path, the verbs
//	access.go         who may do what; kubectl auth can-i and whoami
//	kind.go           what a kind is to clients: names, access, table columns
//	kinds.go          the kinds themselves: Kinds() lists them, a function for each
//	decode.go         body to object: JSON, YAML, strict decoding, bounds
//	protobuf.go       what clients send in protobuf
//	scanner.go        stored JSON to client JSON without decoding, for lists and watches
//	write.go          create and update: what a request asks of cloud/objects
//	patch.go          JSON, merge and strategic merge patches, server-side apply
//	managedfields.go  which manager an apply takes fields from
//	delete.go         delete, deletecollection
//	list.go           get, list, pages, selectors
//	turns.go          how many lists of one user are made at a time
//	watch.go          watch, bookmarks
//	table.go          content negotiation, Tables, the answer to a request
//	dialects.go       kinds in the form of another API group
//	rendered.go       what a node is to apply, as its agent or flightctl's asks for it
//	discovery.go      API groups, resources, OpenAPI v2 and v3
//	namespaces.go     namespaces, which are no objects here
//	errors.go         errors to Status objects
//
// To add a property to a kind, add the field with its comment to the kind's type in topics/resource (DeviceModel:
// topics/resource/model.go), its rule to the type's Validate there, and run make golden: schemas.json here and
// docs/crds.yaml are generated from the types and their comments. kubectl explain, strict decoding and server-side apply
// follow from the schema. Only a new table column or field selector needs a change here, in kinds.go. Dialects that have
// the field map it in topics/dialect.
//
// To add a kind, add its type to topics/resource, its rules to cloud/objects/kinds.go and its columns to kinds.go.
package api
