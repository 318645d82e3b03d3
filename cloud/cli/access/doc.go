// SPDX-License-Identifier: Apache-2.0

// Package access is which hub a command talks to, and as whom: flags come before the environment, that before a context of the
// kubeconfig, that before the hub of this machine. It makes clients of the API (Hub) and of brokers (Broker) from that.
//
// It never sends a context's credentials to another address than the context names, and no password in the clear over a network.
//
// # Files, in reading order
//
//	flags.go        Flags: what can be given on the command line, and how it is resolved
//	target.go       Target: a hub's addresses and the credentials for it
//	kubeconfig.go   contexts, clusters and users in kubeconfigs
//	pin.go          a hub's authority, taken from the hub by its fingerprint
//	hub.go          Hub: a command that asks the API; objects that it reads and watches; completion of names
//	nodes.go        what several commands ask about nodes: near names, which are offline, which wait for approval
//	broker.go       Broker: a command that talks MQTT
//
// # Where to add
//
//   - a flag that says whom to ask: Flags.RegisterCredentials and Target.overrideCredentials.
//   - something that a context remembers: a field of the kubeconfig's extension, kubeconfig.go.
//   - something that a command can ask the hub: a method of cloud/client; here only if several packages need it.
package access
