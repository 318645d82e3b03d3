// SPDX-License-Identifier: Apache-2.0

// Package store keeps a core's state on disk: both maps of the node's tree with
// their place in the link protocol, and what is in force for each property. After
// Commit returns, all of a batch outlives a power cut, but for reported values that may wait (Batch.MayWait); if it fails, none of it does.
// It never decides what to store: that is the twin's task.
//
// The state is a bbolt database and a log before it. A Commit is one frame at the end
// of the log (package broker/wal), one write and one sync, at a cost that doesn't grow
// with the number of keys. A checkpoint reads the log's closed segments, keeps
// the last change of each key, writes these into the database in small transactions, and retires the segments. At the start
// the state is that of the database, with the changes of the remaining log applied.
//
// # Format
//
// In the directory [DirName] of the data directory the database is the file core.db.
// Its buckets:
//
//	meta       format: "edgebus-core/1"; node: the name of the node; state: the last segment that is in it, how many records
//	           the other buckets have, and the sum of their checksums as big-endian numbers; 8 bytes each, big-endian
//	state      up, down: the maps' places, a link.MapState in CBOR each; floor: of the versions in force, a CBOR number;
//	           ahead, while changes wait: up to which number of the map up others may have been given, a varint
//	up         edge-owned entries and tombstones by key, as link.AppendEntry writes them
//	down       cloud-owned ones
//	effective  what is in force for a property, by its desired key: an Effective in CBOR
//
// Each value but format and node is behind a CRC-32C (little-endian) of the bucket's number,
// 0 to 4 in this order, key and value: bbolt has none. A frame of the log is records, one
// after the other:
//
//	1, bucket, length of the key, key, length of the value, value   put
//	2, bucket, length of the key, key                               delete
//	3, bucket, 0                                                    delete all in the bucket
//
// with one byte for operation and bucket each, and lengths as varints.
//
// The values of secrets/… are encrypted before they get into the log (Options.Secrets). Everything else of their entries is as
// the link has it, and the map that Load returns has the plain values, so the digest is the hub's. One that can't be decrypted
// is left out by Load, and deleted with the next commit: the digests differ then, and the hub sends the map whole.
//
// # Files, in reading order
//
//	store.go       the store from outside: a batch is committed, files are shown to a backup
//	held.go        changes that wait for the disk
//	database.go    the format of database and log, and what makes a backup fit to go on
//	checkpoint.go  from the log into the database, and reading both
//	sealed.go      values that are encrypted
//
// # Where to add
//
//   - a kind of record: the kinds and buckets (database.go), appendBatch, and Store.load (checkpoint.go)
//   - what is stored beside the maps: a key of kindState, storedView.states (checkpoint.go)
package store
