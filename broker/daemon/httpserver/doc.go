// SPDX-License-Identifier: Apache-2.0

// Package httpserver is what the HTTP APIs of hub and core have in common: listeners as the settings say, with bounds
// on connections and time, and how watches are written.
//
// It never decides what a client may do: a client's certificate is verified if there is one, and the handler does the
// rest.
//
// # Files, in reading order
//
//	httpserver.go   Listen and Run
//	health.go       whether the one that runs on this host is ready
//	connections.go  how many connections there are, of whom, and which is closed for another
//	json.go         bodies of requests and answers
//	query.go        parameters of queries, as Kubernetes reads them
//	watch.go        how events of watches are written, by how many at a time
//	discovery.go    what kubectl asks to find out which kinds there are
//
// # Where to add
//
//   - a bound on what a client may hold: connections.go, and a field of limits.Limits.
//   - a parameter of lists and watches that hub and core both know: query.go.
package httpserver
