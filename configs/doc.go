// SPDX-License-Identifier: Apache-2.0

// Package configs is where settings come from: the programs' options, their
// defaults (embedded YAML, which is their documentation too), and how a file, the
// environment and flags change them.
//
// It never acts on a setting: it opens no listener and no store, and it changes
// no state. The one exception to "values only" is that a password or a certificate
// that a setting names by its file is read here, so that it is done one way.
//
// # Files, in reading order
//
//	configs.go    the settings of hub, core, agent, discovery and mappers, with what is demanded of each in its tags
//	load.go       from defaults, a file, credentials, the environment and flags to settings; --print-config, --check-config
//	schema.go     settings as fields: their keys, how a text becomes a value, how a file is scanned, with lines for errors
//	rules.go      what a tag can demand of a text
//	check.go      what settings demand of each other, and what depends on the host
//	tls.go        certificates that settings name, read anew when they are renewed
//	listeners.go  where a broker listens, by the settings
//	edit.go       changes in a file that leave all else in it
//	owner_*.go    files' owners, where a system has them
//	samples.go    the resources in samples/
//	models.go     the library of DeviceModels in models/
//	deploy/       for those who run it: alert rules for Prometheus
//
// # Where to add
//
//   - a setting: a field in configs.go with its tags, and its default with a comment in the program's YAML file, from which --help and --print-config
//     are made.
//   - a rule about one setting: a name in rules.go, and the tag. A rule about several: check.go.
//   - a model of the library: a file in models/, its line in docs/models.md, and what such a device says in the library_test.go of its mapper.
//   - a limit of the broker: topics/limits, and both hub.yaml and core.yaml.
package configs
