// SPDX-License-Identifier: Apache-2.0

// Package clusterhub is what a hub of a cluster does besides what a hub alone does: it stands by until it owns the log that the hubs share, has what the others
// have, and tells them of itself. The commands `cloudhub cluster` are here as well: hubs and commands ask the same servers, and each other, for the same things.
//
// It connects packages for that, as package cloud does, which is the only one that knows it. Its methods do nothing for the nil that a hub alone has.
//
// # Files, in reading order
//
//	shared.go        the log of several hubs: one of them owns it, and this one stands by until it does
//	logchecks.go     what that log's servers and this host's clock must be like for that
//	peers.go         how this hub reaches the others, and they it
//	status.go        what the hubs tell each other, and how all of them are
//	site.go          what is served over HTTP, standing by and as the owner
//	mirrors.go       lists and watches that a hub which stands by answers itself
//	carried.go       MQTT connections that a hub which stands by takes for the one that serves
//	blobs.go         blobs copied between the hubs
//	keys.go          the authority's files and the key of Secrets, copied between them
//	drain.go         a hub that lets others serve; backups of one that stands by
//	finishupgrade.go the log's version of records, when all hubs know it
//	commands.go      the commands of cluster
//	certificates.go  certificates and settings of the servers that have the log
//	join.go          a hub that joins the others, with a backup or by cluster.key alone
//	data.go          data from a cluster into another, into one hub, and out of a backup
//
// # Where to add
//
//   - something that other hubs are asked for: a purpose of streams, as in carried.go, or of requests, as in keys.go.
//   - something that hubs tell each other: a field of cluster.Hub, which self in status.go fills.
//   - a command: a row of clusterCommands. One that needs the running hub asks it at its socket, as drain does.
//   - a reason for which a hub must not own the log: isAble in logchecks.go.
package clusterhub
