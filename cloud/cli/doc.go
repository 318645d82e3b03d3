// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line edgebus: it shows, applies, watches and deletes the hub's objects, shows and sets devices' values,
// shows a node's topics, finds out what is wrong with a node, and runs a demonstration of the whole bus. root.go has the table of
// commands, and what is said about a command line that can't be understood.
//
// It never does what couldn't be done with the API or an MQTT client: it links neither hub nor core. The commands for data
// directories run the program that the data belongs to.
//
// # Packages, in reading order
//
//	access              which hub a command talks to, and as whom: flags, contexts in kubeconfigs, the clients that are made of them
//	exitcode            errors that know the exit code
//	printer, terminal   tables, documents, texts; what only a terminal is shown: colours, progress, the question for a password
//	signin              OpenID Connect: logging in, and renewing a token
//	objects             get, watch, describe, events, wait, explain, kinds, apply, diff, edit, label, annotate, delete, export
//	devices             twin, call, tree, pub, sub
//	tree                a node's topics, followed at a broker and drawn
//	nodes               invite, approve, deny, node, authority, mapper, rollout, upgrade, artifact, blob
//	doctor              doctor
//	diagnosis           what doctor says, which the hub says as well: checks of facts
//	hub                 context, kubeconfig, login, token, session, user, passwd, check, backup, restore, follow, takeover
//	demo, newmapper     demo; new-mapper, and the templates of what it writes
//	program             where the other programs are
//
// # Where to add
//
//   - a command: a file in the package of what it is about, with a function that makes the cobra.Command, and its name in Commands there.
//     A package of commands is a line in NewCommand (root.go).
//     access.Hub and access.Broker register the flags that say which hub to ask.
//   - a form of output: printer. An exit code: exitcode; all of them are part of the interface.
//   - a check of doctor: a file in package diagnosis.
package cli
