// SPDX-License-Identifier: Apache-2.0

// Package http drives devices that have an HTTP interface: properties are values in the JSON that a device answers or sends, writes and
// commands are requests.
//
// # Files, in reading order
//
//	settings.go the table of settings
//	config.go   a Device's and its model's settings
//	http.go     the driver and its sessions
//	hooks.go    what devices send by themselves
//	command.go  the program: mapper-http, and its command read
//	browse.go   its command browse: a model of what a device answers
//
// # Where to add
//
//   - a setting: settings.go and config.go.
//   - a way to sign in: authorize in http.go.
package http
