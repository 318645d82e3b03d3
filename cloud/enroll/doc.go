// SPDX-License-Identifier: Apache-2.0

// Package enroll is how nodes become part of the bus, and cease to be: the hub's certificate authority, invitations
// (tokens), requests that a person approves, renewal of certificates, and revocation.
//
// A node that enrols speaks MQTT over TLS to the hub's broker, as nodes do, in a role that may use one request topic
// and its answer and nothing else. The package never sees a node's private key, never stores a token, and never
// signs for another name than the one that the invitation, the approver or the node's present certificate says.
//
// # Files, in reading order
//
//	enroll.go            Service: nodes that connect to enrol (broker.Tree and Presence), revocation, notices to nodes that are refused
//	joiner.go            the steps by which a host becomes a node: its Node is written, its certificate signed, what was issued before revoked
//	invitations.go       invitations: made, counted, revoked
//	requests.go          EnrollmentRequests: limits, decisions carried out, certificates of enrollers, renewals over HTTPS
//	authority.go         the certificate authority: its files, rotation, signing, TLS
//	revocations.go       which certificates are taken no more, in a file that outlives restored backups
//	revocationrecords.go the same as records, for hubs that go on in this one's place
//	replica.go           what a hub that stands by has of the authority
//	authorityrecord.go   which files the authority has: a record that tells lost ones from those of a new hub
//	labelscontroller.go  the controller that copies system information into labels
//	http.go              what is served below /enroll/
//
// # Where to add
//
//   - a condition on who may join: Service.Admit (enroll.go) before the node has asked, Invitation.check (invitations.go) or requests.carryOut
//     (requests.go) when it is let in.
//   - something that a certificate says: Authority.sign (authority.go); the broker reads it in broker/access.go.
//   - something that a Node gets when its node joins: joiner.writeJoinedNode (joiner.go).
package enroll
