// SPDX-License-Identifier: Apache-2.0

// Package hub has the commands for a hub itself: which one to ask and as whom (context, kubeconfig, login), who may ask it (token,
// session, user, passwd), and its data (check, backup, restore, which work on a core's data as well; follow, takeover; cluster).
//
// It never opens a data directory: the program that the data belongs to does.
//
// # Files, in reading order
//
//	context.go   context set, use, list, delete; kubeconfig: one to be given away
//	login.go     login: a token of an OpenID Connect provider
//	token.go     token: the hub's own tokens
//	session.go   session: sessions of MQTT clients
//	user.go      user: the users in the hub's settings
//	data.go      check, backup, restore; passwd: hashes for auth.users
//	follow.go    follow, takeover: a copy of a hub on another machine
//	cluster.go   cluster: several hubs that have a log in common
//
// # Where to add
//
//   - a command on a hub: a file here, and its name in Commands (context.go).
//   - a thing that a context remembers: package access.
//   - a command on a data directory: in the program that the data belongs to; here only the call.
package hub
