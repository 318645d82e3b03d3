// SPDX-License-Identifier: Apache-2.0

// Package daemon is what hub, core and mappers have in common as processes: start and stop in order, the
// notification that they are ready, and bounds that follow from the machine's memory and file descriptors.
//
// It never reads a setting, and knows nothing of what a program does.
//
// # Files, in reading order
//
//	daemon.go       Run, what is stopped in which order, and the version
//	descriptors.go  listeners leave file descriptors to the process (descriptors_*.go: how many there are)
//	network.go      what a limit for each address counts a peer under
//	label.go        texts as values of metrics' labels
//
// # Packages, in reading order
//
//	datadir     the data directory: locked, watched, and written durably
//	boltfile    bbolt files: made whole or not at all, with every page looked at before they are written
//	backup      check, backup, restore, rotate-key and take-authority, of a program that is stopped or runs
//	seal        the key that encrypts Secrets on disk
//	httpserver  listeners for HTTP with bounds, watches, and discovery for kubectl
//	metrics     the Prometheus registry, and the metrics that both programs have
//	rawgrpc     gRPC with messages as they are on the wire
//	tracing     traces of desired values, sent to a collector of OpenTelemetry
//	subprocess  programs of the host that are run to their end
//	sysinfo     what a host says of itself
//
// # Where to add
//
//   - something that both hub and core do as processes, and that is no setting and no broker: a package here.
//   - a bound that follows from the machine: topics/limits has its memory, descriptors.go its file descriptors.
package daemon
