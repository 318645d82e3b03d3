// SPDX-License-Identifier: Apache-2.0

// Package dialect converts between the canonical kinds and the forms that other projects have for them: KubeEdge, flightctl
// and Akri. Each foreign API group has one file with a pair of pure functions for each kind, registered as data in All.
//
// Values that one form can't express are kept in an annotation of the other, with their paths. Each is valid as long as the other
// form has the same value at that path. The package never stores anything, never looks anything up, and never shows a status that a
// manifest only claims as fact: see Kind.Read.
//
// # Files, in reading order
//
//	dialect.go              a Kind: reading an object in its form, and showing one
//	difference.go           what two forms of an object differ in, and how that is put back
//	formfields.go           what fields of a canonical object are called in a form, for errors
//	status.go               writes of a status in another form
//	schema.go               the schema of a form
//	kubeedge.go             what the versions of devices.kubeedge.io have in common
//	kubeedgev1alpha1.go     its first form, in which desired values stand in the status
//	kubeedgev1alpha2.go     with a section for each protocol, and visitors in the Device
//	kubeedgev1beta1.go      with free protocols and push methods
//	kubeedgejobs.go         operations.kubeedge.io and upgrade.kubeedge.io
//	flightctl.go            the kinds of flightctl.io
//	flightctldevice.go      its Device, which is our Node
//	flightctlfleet.go       Fleet and TemplateVersion
//	flightctlrepository.go  Repository and ResourceSync
//	flightctlenrollment.go  EnrollmentRequest and CertificateSigningRequest
//	flightctlrendered.go    what its agent is told to apply
//	akri.go                 Configuration and Instance of akri.sh
//
// # Packages, in reading order
//
//   - fit: compares JSON with the Go type that it is to be decoded into
//
// # Where to add
//
//   - a field that has a meaning: the form's type, and its two functions; a manifest that has it in testdata
//   - a field that is only kept: a keptField of the form's type, so that nobody is warned that it is misspelt
//   - a kind or a version: a Kind with its pair of functions, in AllKinds (dialect.go)
package dialect
