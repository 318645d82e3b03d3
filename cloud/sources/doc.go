// SPDX-License-Identifier: Apache-2.0

// Package sources reads what specs refer to: git repositories, HTTP servers and OCI registries.
//
// Each call is bounded in time and size, and goes only where the hub's administrator lets it: never to the hub's own
// addresses or to link-local ones, where clouds have their metadata, unless they are allowed. It goes there itself: what the
// environment says of proxies (HTTPS_PROXY, ALL_PROXY) is ignored, since a proxy would go anywhere. Client makes the calls and keeps
// nothing. Resolver keeps what each source was last resolved to, reads it again from time to time, once however many nodes and
// fleets refer to it, and has the contents as blobs. It never decides what becomes of them.
//
// # Files, in reading order
//
//	resolver.go  what references stand for: a record of each source, who uses it, when it is read again
//	sources.go   Client: where it may connect, HTTP, and why a source can't be read
//	git.go       commits and their files, over HTTP and SSH
//	packs.go     commits on disk while they are read
//	oci.go       digests of images, and files of artifacts
//
// # Where to add
//
//   - a type of source: resource.Reference and its type, a case in Resolver.fetch, and a method of Client that reads it within its bounds.
//   - a reason why a source can't be read: the Reasons (sources.go); conditions show it as it is.
package sources
