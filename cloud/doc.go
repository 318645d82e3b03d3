// SPDX-License-Identifier: Apache-2.0

// Package cloud is the hub, the daemon in the cloud. Run wires its parts together, and does nothing else.
//
// It never contains what a part does: each is a package, or a file here.
//
// # Files, in reading order
//
//	cloud.go        Run, one straight line from the data directory to what runs; Main
//	broker.go       the broker's options, of the settings
//	access.go       who is let in, and what it may refer to: names, tokens, certificates, the audit log
//	controllers.go  all controllers
//	commands.go     commands that come over HTTP
//	doctor.go       what is wrong with a node, by what the hub knows
//	projections.go  what objects come to on nodes, as documents; what nodes report of upgrades
//	history.go      who asks what properties were
//	rules.go        what carries out KubeEdge's Rules
//	alerts.go       what needs somebody, and who is told
//	views.go        views of all nodes' Devices for other systems, such as Home Assistant
//	devicesettings.go  which settings mappers take for Devices
//	report.go       what is said of the links, and metrics
//	beginanew_*.go  how a hub that owns it no more stops without a word
//
// # Packages, in reading order
//
//	store, store/disk   objects as bytes with a revision; the records that they are, and the index that serves reads
//	hubdata             a hub's data directory: its log, the key of Secrets; the commands check, backup, restore, takeover and follow
//	clusterhub          what a hub of a cluster does besides: it stands by, and has what the others have; the commands of cluster
//	cluster, jetstream  one of several hubs owns the log that they share, the others stand by; the engine that NATS servers replicate it with
//	objects             the one place in which objects are read and written by the rules for all of them: validation, field
//	                    owners, finalizers, Secrets sealed (sealed.go), what a writer may refer to (objects/rawjson: parts of JSON without decoding it)
//	api                 objects over HTTP, as Kubernetes serves them; dialects are other forms of the same objects
//	client              the client of that API, for programs and tests
//	cli                 the command line: the program is cmd/edgebus; cmd/cloudhub: that of the hub
//	twin                the hub's end of every node's link: what nodes are told, and what they report
//	control             how controllers are run, and told of changes: informers, indexes; controllers.go here makes all of them
//	fleet, rollout      whose a node is, and which version of a template it gets when; rollout is the planner without I/O
//	templates           Go templates in Fleets and Configurations
//	render, sources     a Node's spec with each reference resolved; what the references stand for (git, HTTP, OCI)
//	history             what the properties of devices were: a copy of what each node has
//	clusterca           the authority by which hubs of a cluster and the log's servers know each other
//	peer                connections between the hubs of a cluster, and streams over them
//	mirror              objects of the hub that serves, at those that stand by
//	follow              a hub's log copied to another machine while it is written
//	blobs, images       large contents by digest; the images that applications name
//	resourcesync        manifests from git, applied
//	discovery           what nodes found: Instances, Devices, brokers
//	rules               KubeEdge's Rules: requests to nodes, and messages of nodes to servers
//	upgrade             other versions of the programs on nodes
//	enroll, identity    the authority, invitations, certificates; tokens and OpenID Connect
//	events              what happened to objects
//
// # A Fleet, from apply to a file on a node
//
//  1. `kubectl apply` sends a PATCH: api/patch.go merges it, and objects.Registry (objects/write.go) validates the whole Fleet and
//     checks what its writer may refer to. store/disk commits it, then answers, and tells the watches (store/disk/watch.go).
//  2. The informer of Fleets (control/informer.go) tells the controllers that watch them, each of which is called with the keys that the
//     change concerns. That of owners (fleet/controller.go) writes metadata.owner into each Node that the selector matches and that no
//     other fleet owns.
//  3. That of rollouts (fleet/rollout.go) freezes the template into a TemplateVersion (fleet/version.go), asks
//     rollout.Plan which nodes may change now, within batches, windows and the disruption budget, and writes these Nodes' specs with
//     the template expanded for each (fleet/node.go).
//  4. The controller of package render resolves the references of a Node's spec, with package sources, puts large contents into
//     package blobs, and writes a record RenderedSpec with the next renderedVersion.
//  5. projections.go turns that record into documents of the node's map down, and package twin sends what has changed over
//     the link (topics/link) as soon as the node is there. From here see package edge.
//  6. The agent's report comes back in the node's map up: twin/connection.go takes it, twin/status.go writes it into the Node's status,
//     and the rollout plans its next step. Which version the node has is an annotation that follows from both, and isn't stored by itself.
//
// # A report, from a mapper to `kubectl get -w`
//
//  1. Package edge says how a reported value gets into the node's map up and over the link. Here the broker gives messages of
//     the link to twin.Twins.receiveFromNode (twin/connection.go): steps of one goroutine, committed together in the store before anything is
//     published or acknowledged.
//  2. The value is published, retained, at the hub's broker under the topic that it has on the node: MQTT clients have it now.
//  3. twin/status.go merges what a Device reported into its status and gives that to store/disk, several changes at a time. It isn't stored
//     a second time: after a restart it is derived when it is read.
//  4. store/disk tells the watches; api/watch.go writes the event as a line of JSON, or as a row of a Table, which is what kubectl prints.
//
// # Where to add
//
//   - a kind: its type in topics/resource, a row in objects/kinds.go and in api/kinds.go. The tests of package api list what else it needs.
//   - a controller: a package with a function that makes control.Controllers, and a line in controllers.go.
//   - a document that nodes are sent: a row in projections.go, and a topic in topics/table.go.
//   - a dialect's field: topics/dialect.
package cloud
