// SPDX-License-Identifier: Apache-2.0

// Package resource has the nouns of the bus as Go types: Device, DeviceModel, Node, Fleet, Event and the others. Each noun
// has one type, which is the same JSON on disk, in the API and on the bus, and methods that validate it.
//
// It never does I/O and never looks at a clock. It imports only the standard library and package topics.
//
// # Files, in reading order
//
//	meta.go            what all objects have: metadata, conditions, times
//	errors.go          errors that name a field and a rule, of a kind that becomes an HTTP status or a reason code
//	suggest.go         the name that a misspelt one may stand for
//	device.go          Device, and why one is not online
//	model.go           DeviceModel: properties, their types, and the check of values
//	modelcommand.go    the events and commands of a model
//	visitor.go         how a mapper reaches properties, events and commands
//	alarm.go           alarms: when a value is where somebody must know of it
//	settings.go        the settings that a mapper's protocol has
//	history.go         how what properties were is kept, asked for and answered
//	twin.go            the twin of a device: desired and reported values, refusals, InSync
//	node.go            Node, and the spec of its host
//	nodestatus.go      what is observed of a node
//	nodeconditions.go  the conditions of a node, and what they follow from
//	nodelabels.go      labels that are derived from a node's system information
//	summary.go         a node's status in one word, and counts of them
//	rendered.go        the rendered spec, and what an agent reports
//	references.go      what a spec refers to, and what a template version freezes
//	secret.go          Secret and ConfigMap
//	fleet.go           Fleet and TemplateVersion
//	repository.go      Repository and ResourceSync
//	cron.go            the schedules of fleets and agents
//	upgrade.go         Upgrade
//	upgradeorder.go    what hub and node tell each other of upgrades
//	artifact.go        Artifact, and the manifest of its programs
//	ready.go           the condition Ready of Fleets, Upgrades and ResourceSyncs
//	discovery.go       Configuration, Instance, and what discovery handlers report
//	enrollment.go      EnrollmentRequest
//	join.go            tokens, and the messages by which a node joins
//	decommission.go    the notice that ends a node
//	links.go           the state of links and sessions, as doctor shows it
//	cluster.go         the state of several hubs that have a log in common
//	blob.go            digests, and requests for blobs
//	event.go           Event
//	lease.go           Lease
//	rule.go            Rule and RuleEndpoint
//
// # Where to add
//
//   - a field: the type, with a comment, which becomes the schema and kubectl explain (make golden), and its check
//   - a kind: a type with TypeMeta, Meta and Validate, its name in meta.go, and its registration in cloud/objects
//   - a condition of a node: nodeconditions.go, set by whoever observes it
package resource
